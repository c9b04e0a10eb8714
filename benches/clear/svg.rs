//! Just enough SVG for charts: text, boxes, lines, a legend.

use std::fmt::Write as _;

pub const WIDTH: f64 = 860.0;

/// Colours that differ in print and for colour-blind eyes.
pub const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#999999", "#d55e00"];

/// Where text stands in relation to its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

pub struct Canvas {
    height: f64,
    body: String,
}

impl Canvas {
    /// A white sheet with a title, and a line below it that says what was measured.
    pub fn new(height: f64, title: &str, subtitle: &str) -> Canvas {
        let mut canvas = Canvas { height, body: String::new() };
        canvas.rect([0.0, 0.0, WIDTH, height], "#ffffff");
        canvas.sized(20.0, 28.0, 18, Anchor::Start, title);
        canvas.sized(20.0, 48.0, 12, Anchor::Start, subtitle);
        canvas
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.sized(x, y, 12, anchor, text);
    }

    fn sized(&mut self, x: f64, y: f64, size: u32, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// Left, top, width, height.
    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], colour: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        );
    }

    pub fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], colour: &str) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
        );
    }

    /// Connected points.
    pub fn path(&mut self, points: &[[f64; 2]], colour: &str) {
        let points: String = points.iter().map(|[x, y]| format!("{x:.1},{y:.1} ")).collect();
        let _ = writeln!(
            self.body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.trim_end()
        );
    }

    /// Names beside their colours, in a row.
    pub fn legend(&mut self, y: f64, names: &[&str]) {
        let mut x = 20.0;
        for (name, colour) in names.iter().zip(COLOURS) {
            self.rect([x, y - 10.0, 12.0, 12.0], colour);
            self.text(x + 18.0, y, Anchor::Start, name);
            x += 50.0 + 6.6 * name.len() as f64;
        }
    }

    pub fn finish(self) -> String {
        let Canvas { height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"sans-serif\" fill=\"#222\">\n{body}</svg>\n"
        )
    }
}

/// A round step that divides `most` into about five.
pub fn step(most: f64) -> f64 {
    let rough = most.max(1e-9) / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power)
}
