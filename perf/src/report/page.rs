//! Reports as one page each: tables, and plots as SVG in the page itself. A page loads nothing and runs nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::plot::{self, Panel};
use crate::Result;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}\
th{background:#f3f3f3}td:first-child,th:first-child{text-align:left}.limit{background:#ffe9c7;padding:.6em}\
svg{max-width:100%;height:auto}";

/// A whole page; `about` is the line below its title.
pub fn document(title: &str, about: &str, body: &Markup) -> String {
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
                (body)
            }
        }
    };
    page.into_string()
}

pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Markup {
    html! {
        table {
            tr { @for cell in head { th { (cell) } } }
            @for row in rows { tr { @for cell in &row { td { (cell) } } } }
        }
    }
}

/// What bounds the figures of a page, so that nobody overlooks it.
pub fn limit(words: &str) -> Markup {
    html! { p class="limit" { (words) } }
}

pub fn svg(title: &str, x_title: &str, panels: &[Panel]) -> Result<Markup> {
    plot::svg(title, x_title, panels).map(PreEscaped)
}
