use crate::context::Context;
pub fn all(_context: &Context) -> Vec<(&'static str, String)> {
    Vec::new()
}
