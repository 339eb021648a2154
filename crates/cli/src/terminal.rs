//! Text for people: what files call their tensors and what files are called must not reach the terminal as
//! commands to it.

use std::borrow::Cow;
use std::fmt::Write;

/// Tells something on standard error.
#[allow(
    clippy::print_stderr,
    reason = "the one place where errors and remarks reach people"
)]
pub fn tell(text: &str) {
    eprintln!("scrimp: {}", visible(text));
}

/// The text with control characters spelled out, except for ends of lines and tabs.
pub fn visible(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) {
            // Writing to a string can't fail.
            let _ = write!(shown, "\\x{:02x}", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(visible("a\tname\n"), "a\tname\n");
        assert_eq!(
            visible("\u{1b}[31mred\r\u{9b}0m\u{7f} Größe"),
            "\\x1b[31mred\\x0d\\x9b0m\\x7f Größe"
        );
    }
}
