//! JSON, as much of it as the reports need.

use std::fmt;

/// A value. Keys keep their order, so that a report reads the same each time.
#[derive(Debug)]
pub enum Json {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    pub fn list(items: impl IntoIterator<Item = Json>) -> Json {
        Json::List(items.into_iter().collect())
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json::Bool(value)
    }
}

impl From<u64> for Json {
    fn from(value: u64) -> Json {
        Json::Number(value)
    }
}

impl From<u32> for Json {
    fn from(value: u32) -> Json {
        Json::Number(value.into())
    }
}

impl From<usize> for Json {
    fn from(value: usize) -> Json {
        Json::Number(value as u64)
    }
}

impl From<String> for Json {
    fn from(value: String) -> Json {
        Json::Text(value)
    }
}

impl From<&String> for Json {
    fn from(value: &String) -> Json {
        Json::Text(value.clone())
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Json {
        value.map_or(Json::Null, Into::into)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => write!(f, "{value}"),
            Json::Number(value) => write!(f, "{value}"),
            Json::Text(text) => quote(f, text),
            Json::List(items) => bracket(f, "[]", items, |f, item| write!(f, "{item}")),
            Json::Object(fields) => bracket(f, "{}", fields, |f, (key, value)| {
                quote(f, key)?;
                write!(f, ":{value}")
            }),
        }
    }
}

fn bracket<T>(
    f: &mut fmt::Formatter<'_>,
    brackets: &str,
    items: &[T],
    write: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    f.write_str(&brackets[..1])?;
    for (at, item) in items.iter().enumerate() {
        f.write_str(if at > 0 { "," } else { "" })?;
        write(f, item)?;
    }
    f.write_str(&brackets[1..])
}

fn quote(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for char in text.chars() {
        match char {
            '"' | '\\' => write!(f, "\\{char}")?,
            control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control))?,
            other => write!(f, "{other}")?,
        }
    }
    f.write_str("\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_json_has_them() {
        let value = Json::Object(vec![
            ("a", Json::list([1u64.into(), true.into(), Json::Null])),
            ("b \"", "x\\\n\u{1}é".to_owned().into()),
            ("c", Json::list([])),
            ("d", None::<u64>.into()),
        ]);
        assert_eq!(value.to_string(), r#"{"a":[1,true,null],"b \"":"x\\\u000a\u0001é","c":[],"d":null}"#);
    }
}
