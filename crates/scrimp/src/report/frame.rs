//! What every page has in common: its frame, a heading with the switch between light and dark, tiles,
//! sections, legends.

use super::draw::{escape, put};

/// A whole page: styles, body, and the script for hovering and sorting.
pub(super) fn document(title: &str, body: impl FnOnce(&mut String)) -> String {
    let mut out = String::new();
    put!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    );
    put!(
        out,
        r#"<meta name="viewport" content="width=device-width,initial-scale=1"><title>{}</title>"#,
        escape(title)
    );
    for style in [
        include_str!("colours.css"),
        include_str!("pictures.css"),
        include_str!("page.css"),
    ] {
        put!(out, "<style>{style}</style>");
    }
    out.push_str("</head><body><main>");
    body(&mut out);
    put!(
        out,
        "</main><footer>scrimp {}</footer>",
        env!("CARGO_PKG_VERSION")
    );
    put!(
        out,
        "<div id=\"tip\" hidden></div><script>{}</script></body></html>\n",
        include_str!("page.js")
    );
    out
}

pub(super) fn heading(out: &mut String, title: &str, line: &str) {
    put!(out, "<header><div><h1>{}</h1>", escape(title));
    put!(out, "<p class=\"quiet\">{}", escape(line));
    put!(
        out,
        "</p></div><button id=\"theme\" type=\"button\">light / dark</button></header>"
    );
}

/// A tile that shows a number at a glance.
pub(super) fn tile(out: &mut String, name: &str, number: &str, note: &str) {
    put!(
        out,
        "<div><h3>{}</h3><b>{}</b><span>{}</span></div>",
        escape(name),
        escape(number),
        escape(note)
    );
}

/// Opens a section; the text may have tags.
pub(super) fn section(out: &mut String, title: &str, text: &str) {
    put!(out, "<section><h2>{}</h2>", escape(title));
    if !text.is_empty() {
        put!(out, "<p>{text}</p>");
    }
}

/// A legend: pairs of style class and name.
pub(super) fn legend(out: &mut String, keys: &[(&str, &str)]) {
    out.push_str("<p class=\"legend\">");
    for (class, name) in keys {
        put!(
            out,
            r#"<span><i class="key {class}"></i>{}</span>"#,
            escape(name)
        );
    }
    out.push_str("</p>");
}
