//! What processes tell each other, and the arithmetic on it.

use std::time::Duration;

/// Named numbers and texts: what a child process prints and its parent reads, one `name=value` a line.
#[derive(Default)]
pub struct Readings(Vec<(String, String)>);

impl Readings {
    pub fn set(&mut self, name: &str, value: impl ToString) {
        self.0.push((name.to_owned(), value.to_string().replace('\n', " ")));
    }

    pub fn set_time(&mut self, name: &str, time: Duration) {
        self.set(name, time.as_nanos());
    }

    pub fn parse(text: &str) -> Readings {
        let split = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Readings(text.lines().filter_map(split).collect())
    }

    pub fn print(&self) {
        for (name, value) in &self.0 {
            println!("{name}={value}");
        }
    }

    /// The text called `name`; empty when there is none.
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    /// The number called `name`; 0 when there is none.
    pub fn number(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(0.0)
    }
}

/// The middle value, and the smallest and largest beside it.
#[derive(Clone, Copy)]
pub struct Summary {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Summary {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Summary {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let [Some(&least), Some(&most)] = [values.first(), values.last()] else {
            return Summary { least: f64::NAN, median: f64::NAN, most: f64::NAN };
        };
        let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
        Summary { least, median: (values[low] + values[high]) / 2.0, most }
    }
}
