//! Reports as parts, which are printed, or make one page: tables, and plots as SVG in the page itself. A page loads nothing and
//! runs nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::plot::{self, Panel};
use super::table::Table;
use crate::Result;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}\
th{background:#f3f3f3}td:first-child,th:first-child{text-align:left}.limit{background:#ffe9c7;padding:.6em}\
svg{max-width:100%;height:auto}";

#[derive(Debug, Clone)]
pub enum Part {
    Heading(String),
    /// What bounds the figures, so that nobody overlooks it.
    Limit(String),
    Words(String),
    Rows {
        titles: Vec<&'static str>,
        rows: Vec<Vec<String>>,
    },
    /// Panels under a title; of pages alone.
    Plot {
        title: String,
        x_title: &'static str,
        panels: Vec<Panel>,
    },
}

impl Part {
    pub fn table<'a, R: 'static>(table: &Table<R>, rows: impl IntoIterator<Item = &'a R>) -> Self {
        Self::Rows { titles: table.titles(), rows: rows.into_iter().map(|row| table.cells(row)).collect() }
    }

    pub fn plot(title: impl Into<String>, x_title: &'static str, panels: impl Into<Vec<Panel>>) -> Self {
        Self::Plot { title: title.into(), x_title, panels: panels.into() }
    }

    fn html(&self) -> Result<Markup> {
        Ok(match self {
            Self::Heading(words) => html! { h2 { (words) } },
            Self::Limit(words) => html! { p class="limit" { (words) } },
            Self::Words(words) => html! { p { (words) } },
            Self::Rows { titles, rows } => html! {
                table {
                    tr { @for title in titles { th { (title) } } }
                    @for row in rows { tr { @for cell in row { td { (cell) } } } }
                }
            },
            Self::Plot { title, x_title, panels } => PreEscaped(plot::svg(title, x_title, panels)?),
        })
    }
}

/// All parts as lines.
pub fn text(parts: &[Part]) -> String {
    let lines = parts.iter().map(|part| match part {
        Part::Heading(words) => format!("\n{words}\n"),
        Part::Limit(words) | Part::Words(words) => format!("{words}\n"),
        Part::Rows { titles, rows } => aligned(titles, rows),
        Part::Plot { .. } => String::new(),
    });
    lines.collect()
}

/// Columns as wide as they have to be, the first with its cells at the left.
fn aligned(titles: &[&str], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = titles.iter().map(|&title| title.to_owned()).collect();
    let all = || std::iter::once(&titles).chain(rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    all().map(line).collect()
}

/// A whole page; `about` is the line below its title.
pub fn page(title: &str, about: &str, parts: &[Part]) -> Result<String> {
    let parts = parts.iter().map(Part::html).collect::<Result<Vec<_>>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p { (about) }
                @for part in &parts { (part) }
            }
        }
    };
    Ok(page.into_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_printed_below_each_other() {
        let rows = vec![vec!["long name".into(), "1".into()], vec!["b".into(), "20".into()]];
        let parts = [
            Part::Heading("all".into()),
            Part::Rows { titles: vec!["name", "count"], rows },
            Part::plot("none", "seconds", []),
            Part::Words("that is it".into()),
        ];
        let expected = "\nall\nname       count\nlong name      1\nb             20\nthat is it\n";
        assert_eq!(text(&parts), expected);
    }
}
