//! The figures that were promised, and what was got.

use crate::judge;
use crate::measure::Summary;

/// What a figure has to be.
#[derive(Clone, Copy, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// Shown for what it is.
    Any,
}

impl Bound {
    fn is_met(self, got: f64) -> bool {
        match self {
            Bound::AtLeast(least) => got >= least,
            Bound::AtMost(most) => got <= most,
            Bound::Any => true,
        }
    }

    /// How well: smaller is worse.
    fn merit(self, got: f64) -> f64 {
        if let Bound::AtMost(_) = self { -got } else { got }
    }

    fn text(self) -> String {
        match self {
            Bound::AtLeast(least) => format!(">= {least}"),
            Bound::AtMost(most) => format!("<= {most}"),
            Bound::Any => "-".to_owned(),
        }
    }
}

/// One figure: cells that all have to meet a bound, each with what was got in every run.
struct Figure {
    name: String,
    bound: Bound,
    cells: Vec<(String, Vec<f64>)>,
}

/// All figures, in the order in which they were first measured.
#[derive(Default)]
pub struct Verdicts {
    figures: Vec<Figure>,
    skipped: Vec<String>,
}

impl Verdicts {
    /// Adds what one run got in one cell.
    pub fn add(&mut self, name: &str, bound: Bound, cell: &str, got: f64) {
        let at = self.figures.iter().position(|figure| figure.name == name).unwrap_or_else(|| {
            self.figures.push(Figure { name: name.to_owned(), bound, cells: Vec::new() });
            self.figures.len() - 1
        });
        let cells = &mut self.figures[at].cells;
        match cells.iter_mut().find(|(known, _)| known == cell) {
            Some((_, all)) => all.push(got),
            None => cells.push((cell.to_owned(), vec![got])),
        }
    }

    /// Says once that something was not measured, and why.
    pub fn skip(&mut self, what: &str, why: &str) {
        let line = format!("{what}: {why}");
        if !self.skipped.contains(&line) {
            self.skipped.push(line);
        }
    }

    pub fn all_met(&self) -> bool {
        self.figures.iter().all(|figure| figure.bound.is_met(figure.worst().1.median))
    }

    /// A line for each figure: its worst cell, and how many cells do not meet it.
    pub fn text(&self) -> String {
        let mut text: String = self.figures.iter().map(Figure::line).collect();
        self.skipped.iter().for_each(|line| text += &format!("skipped {line}\n"));
        text
    }

    /// Every cell of every figure, for the CSV file.
    pub fn csv(&self) -> String {
        let mut csv = String::from("figure,cell,wanted,least,median,most,met\n");
        for figure in &self.figures {
            for (cell, all) in &figure.cells {
                let Summary { least, median, most } = Summary::of(all.iter().copied());
                let (wanted, is_met) = (figure.bound.text(), figure.bound.is_met(median));
                csv += &format!("\"{}\",\"{cell}\",{wanted},{least:.4},{median:.4},{most:.4},{is_met}\n", figure.name);
            }
        }
        csv
    }
}

impl Figure {
    fn worst(&self) -> (&str, Summary) {
        let summaries = self.cells.iter().map(|(cell, all)| (cell.as_str(), Summary::of(all.iter().copied())));
        let merit = |summary: Summary| self.bound.merit(summary.median);
        summaries.min_by(|one, other| merit(one.1).total_cmp(&merit(other.1))).expect("a figure has a cell")
    }

    fn line(&self) -> String {
        let (cell, summary) = self.worst();
        let is_met = self.bound.is_met(summary.median);
        let missed =
            self.cells.iter().filter(|(_, all)| !self.bound.is_met(Summary::of(all.iter().copied()).median)).count();
        let mut line = judge::line(is_met, &self.name, summary, &self.bound.text());
        if self.bound == Bound::Any {
            line.replace_range(..3, "   ");
        }
        if self.cells.len() > 1 {
            let count = self.cells.len();
            let missed = if missed > 0 { format!("; {missed} of {count} not met") } else { String::new() };
            line.insert_str(line.len() - 1, &format!(", worst of {count}: {cell}{missed}"));
        }
        line
    }
}
