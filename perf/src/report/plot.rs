//! Plots: panels over one time axis, as SVG and PNG.
//!
//! Text needs a TrueType font of the system; without one there are no plots, and the error says what to install.

use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::delay::Quantiles;
use crate::{Error, Result};

const FONTS: [&str; 4] = [
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    "/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf",
    "/usr/share/fonts/TTF/DejaVuSans.ttf",
    "/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf",
];
const SIZE: (u32, u32) = (1100, 300);
/// A series with at most this many points has a mark at each.
const MARKED: usize = 20;
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 90, 181), RGBColor(220, 50, 32), RGBColor(30, 130, 60), RGBColor(120, 80, 160)];

#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    /// Its points; a gap is where a point is not finite.
    pub points: Vec<(f64, f64)>,
}

#[derive(Debug, Clone)]
pub struct Panel {
    pub title: String,
    pub series: Vec<Series>,
    /// Whether the axis is logarithmic; values are then taken as at least 0.1.
    pub logarithmic: bool,
}

impl Series {
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.into(), points: points.into_iter().collect() }
    }

    /// The median and the upper percentiles over time; a gap where nothing arrived.
    pub fn percentiles(points: impl Iterator<Item = (f64, Option<Quantiles>)> + Clone) -> Vec<Self> {
        let line = |name: &str, of: fn(Quantiles) -> f64| {
            Self::new(name, points.clone().map(|(at, delay)| (at, delay.map_or(f64::NAN, of))))
        };
        vec![
            line("p50", |delay| delay.p50),
            line("p99", |delay| delay.p99),
            line("p99.9", |delay| delay.p999),
        ]
    }
}

impl Panel {
    pub fn new(title: impl Into<String>, logarithmic: bool, series: Vec<Series>) -> Self {
        Self { title: title.into(), series, logarithmic }
    }
}

/// Draws the panels one below the other into `stem.svg` and `stem.png`; `shaded` marks stretches of time.
pub fn draw(stem: &Path, title: &str, x_title: &str, panels: &[Panel], shaded: &[(f64, f64)]) -> Result<()> {
    let size = (SIZE.0, SIZE.1 * panels.len().max(1) as u32 + 40);
    let (svg, png) = (stem.with_extension("svg"), stem.with_extension("png"));
    let failed = |path: &Path, reason: String| Error::Failed(format!("draw {}: {reason}", path.display()));
    font().map_err(|reason| failed(&svg, reason))?;
    let content = Content { title, x_title, panels, shaded };
    content.draw(SVGBackend::new(&svg, size).into_drawing_area()).map_err(|reason| failed(&svg, reason))?;
    content.draw(BitMapBackend::new(&png, size).into_drawing_area()).map_err(|reason| failed(&png, reason))
}

/// The same as the text of an SVG, for a page that holds everything it shows.
pub fn svg(title: &str, x_title: &str, panels: &[Panel]) -> Result<String> {
    let failed = |reason: String| Error::Failed(format!("draw {title}: {reason}"));
    font().map_err(failed)?;
    let size = (SIZE.0, SIZE.1 * panels.len().max(1) as u32 + 40);
    let content = Content { title, x_title, panels, shaded: &[] };
    let mut text = String::new();
    content.draw(SVGBackend::with_string(&mut text, size).into_drawing_area()).map_err(failed)?;
    Ok(text)
}

fn font() -> Result<(), String> {
    static FONT: OnceLock<Result<(), String>> = OnceLock::new();
    FONT.get_or_init(|| {
        let bytes = FONTS.iter().find_map(|path| std::fs::read(path).ok());
        let bytes = bytes.ok_or("no TrueType font was found; install fonts-dejavu-core")?;
        // Read once and used to the end.
        plotters::style::register_font("sans-serif", FontStyle::Normal, bytes.leak())
            .map_err(|_| "the font is not one that can be read".to_owned())
    })
    .clone()
}

struct Content<'a> {
    title: &'a str,
    x_title: &'a str,
    panels: &'a [Panel],
    shaded: &'a [(f64, f64)],
}

impl Content<'_> {
    fn draw<B: DrawingBackend>(&self, area: DrawingArea<B, Shift>) -> Result<(), String> {
        let text = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
        area.fill(&WHITE).map_err(text)?;
        let area = area.titled(self.title, ("sans-serif", 18)).map_err(text)?;
        let areas = area.split_evenly((self.panels.len().max(1), 1));
        for (index, (panel, area)) in self.panels.iter().zip(&areas).enumerate() {
            let x_title = if index + 1 == self.panels.len() { self.x_title } else { "" };
            self.panel(panel, x_title, area).map_err(text)?;
        }
        area.present().map_err(text)
    }

    fn panel<B: DrawingBackend>(
        &self,
        panel: &Panel,
        x_title: &str,
        area: &DrawingArea<B, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let scale = |y: f64| if panel.logarithmic { y.max(0.1).log10() } else { y };
        let points =
            || panel.series.iter().flat_map(|series| &series.points).filter(|point| point.1.is_finite());
        let last = points().map(|point| point.0).fold(1e-3, f64::max);
        let highest = points().map(|point| scale(point.1)).fold(f64::NEG_INFINITY, f64::max);
        let lowest = points().map(|point| scale(point.1)).fold(f64::INFINITY, f64::min);
        let (low, high) = match panel.logarithmic {
            true if lowest.is_finite() => (lowest.floor(), (highest + 0.1).ceil().max(lowest.floor() + 1.0)),
            false if highest.is_finite() => (0.0, (highest * 1.1).max(1e-9)),
            _ => (0.0, 1.0),
        };
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..last, low..high)?;
        let label = |y: &f64| {
            let value = if panel.logarithmic { 10f64.powf(*y) } else { *y };
            if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
        };
        chart.draw_series(self.shaded.iter().map(|&(from, to)| {
            Rectangle::new([(from, low), (to, high)], RGBColor(255, 228, 170).mix(0.6).filled())
        }))?;
        chart
            .configure_mesh()
            .light_line_style(WHITE.mix(0.0))
            .x_desc(x_title)
            .y_label_formatter(&label)
            .label_style(("sans-serif", 12))
            .draw()?;
        for (series, colour) in panel.series.iter().zip(COLOURS.iter().cycle()) {
            // A new line after every gap.
            for run in series.points.split(|point| !point.1.is_finite()) {
                let run = run.iter().map(|&(x, y)| (x, scale(y)));
                chart.draw_series(LineSeries::new(run, colour.stroke_width(1)))?;
            }
            let colour = *colour;
            // Few points are seen one by one: a line of one point, or along the axis, would not be seen at all.
            if series.points.len() <= MARKED {
                let finite = series.points.iter().filter(|point| point.1.is_finite());
                chart.draw_series(finite.map(|&(x, y)| Circle::new((x, scale(y)), 3, colour.filled())))?;
            }
            let empty = std::iter::empty::<(f64, f64)>();
            chart
                .draw_series(LineSeries::new(empty, colour.stroke_width(2)))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(160, 160, 160))
            .label_font(("sans-serif", 12))
            .position(SeriesLabelPosition::UpperRight)
            .draw()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_a_line_of_one_point_is_seen() {
        if font().is_err() {
            eprintln!("no font on this machine: not drawn");
            return;
        }
        let series = |points| vec![Series { name: "lost".into(), points }];
        let drawn = |points| {
            let panel = Panel { title: "lost".into(), series: series(points), logarithmic: false };
            svg("loss", "offered", &[panel]).unwrap()
        };
        assert_eq!(drawn(vec![(1.0, 0.0)]).matches("<circle").count(), 1);
        assert_eq!(drawn(vec![(1.0, f64::NAN), (2.0, 0.0)]).matches("<circle").count(), 1);
        let many = (0..50).map(|x| (f64::from(x), 1.0)).collect();
        assert_eq!(drawn(many).matches("<circle").count(), 0);
    }

    #[test]
    fn draws_both_files_with_every_name_in_them() {
        if font().is_err() {
            eprintln!("no font on this machine: not drawn");
            return;
        }
        let stem = std::env::temp_dir().join(format!("perf-plot-{}", std::process::id()));
        let line = |name: &str, factor: f64| Series {
            name: name.into(),
            points: (0..50)
                .map(|x| (f64::from(x), if x == 20 { f64::NAN } else { factor * f64::from(x) }))
                .collect(),
        };
        let panel = |title: &str, logarithmic| Panel {
            title: title.into(),
            series: vec![line("first-line", 1.0), line("second-line", 3.0)],
            logarithmic,
        };
        let empty = Panel { title: "nothing".into(), series: Vec::new(), logarithmic: true };
        draw(&stem, "both", "seconds", &[panel("one", false), panel("two", true), empty], &[(5.0, 9.0)])
            .unwrap();
        let text = std::fs::read_to_string(stem.with_extension("svg")).unwrap();
        for name in ["first-line", "second-line", "seconds", "both", "nothing"] {
            assert!(text.contains(name), "{name}");
        }
        assert!(std::fs::read(stem.with_extension("png")).unwrap().starts_with(&[0x89, b'P', b'N', b'G']));
        for kind in ["svg", "png"] {
            std::fs::remove_file(stem.with_extension(kind)).unwrap();
        }
    }
}
