//! Unified diffs of two texts, line by line.

use std::fmt::Write;

const CONTEXT_LINES: usize = 3;
/// Above this product of line counts, everything between the common ends counts as replaced.
const CELLS_MAX: usize = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Old(&'a str),
    New(&'a str),
}

/// `None` if the texts are the same.
pub fn diff(old_name: &str, old: &str, new_name: &str, new: &str) -> Option<String> {
    if old == new {
        return None;
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let lines = compare(&old, &new);
    let mut text = format!("--- {old_name}\n+++ {new_name}\n");
    for (start, end) in hunks(&lines) {
        write_hunk(&mut text, &lines, start, end);
    }
    Some(text)
}

fn compare<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (middle_old, middle_new) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let same = |lines: &[&'a str]| lines.iter().map(|line| Line::Same(line)).collect::<Vec<_>>();
    let mut lines = same(&old[..head]);
    lines.extend(middle(middle_old, middle_new));
    lines.extend(same(&old[old.len() - tail..]));
    lines
}

/// By the longest common subsequence.
fn middle<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let replaced = || old.iter().map(|line| Line::Old(line)).chain(new.iter().map(|line| Line::New(line)));
    if old.len().saturating_mul(new.len()) > CELLS_MAX {
        return replaced().collect();
    }
    let common = common_lengths(old, new);
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() && j < new.len() {
        if old[i] == new[j] {
            lines.push(Line::Same(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if common[i + 1][j] >= common[i][j + 1] {
            lines.push(Line::Old(old[i]));
            i += 1;
        } else {
            lines.push(Line::New(new[j]));
            j += 1;
        }
    }
    lines.extend(old[i..].iter().map(|line| Line::Old(line)));
    lines.extend(new[j..].iter().map(|line| Line::New(line)));
    lines
}

/// How long the longest common subsequence of what follows each pair of places is.
fn common_lengths(old: &[&str], new: &[&str]) -> Vec<Vec<u32>> {
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    common
}

/// Ranges of lines around changes. Ranges that touch are one.
fn hunks(lines: &[Line]) -> Vec<(usize, usize)> {
    let mut hunks: Vec<(usize, usize)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if matches!(line, Line::Same(_)) {
            continue;
        }
        let (start, end) = (at.saturating_sub(CONTEXT_LINES), (at + 1 + CONTEXT_LINES).min(lines.len()));
        match hunks.last_mut() {
            Some(last) if start <= last.1 => last.1 = end,
            _ => hunks.push((start, end)),
        }
    }
    hunks
}

fn write_hunk(text: &mut String, lines: &[Line], start: usize, end: usize) {
    let old = |lines: &[Line]| lines.iter().filter(|line| !matches!(line, Line::New(_))).count();
    let new = |lines: &[Line]| lines.iter().filter(|line| !matches!(line, Line::Old(_))).count();
    let (before, hunk) = (&lines[..start], &lines[start..end]);
    let range = |before: usize, count: usize| match count {
        0 => format!("{before},0"),
        1 => format!("{}", before + 1),
        _ => format!("{},{count}", before + 1),
    };
    let (old, new) = (range(old(before), old(hunk)), range(new(before), new(hunk)));
    let _ = writeln!(text, "@@ -{old} +{new} @@");
    for line in hunk {
        let _ = match line {
            Line::Same(line) => writeln!(text, " {line}"),
            Line::Old(line) => writeln!(text, "-{line}"),
            Line::New(line) => writeln!(text, "+{line}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::diff;

    fn of(old: &str, new: &str) -> String {
        diff("live", old, "merged", new).unwrap_or_default()
    }

    #[test]
    fn only_what_differs_is_shown_with_three_lines_around_it() {
        assert_eq!(of("a\n", "a\n"), "");
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        assert_eq!(
            of(old, &old.replace("5\n", "five\n")),
            "--- live\n+++ merged\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"
        );
        assert_eq!(of("", "a\nb\n"), "--- live\n+++ merged\n@@ -0,0 +1,2 @@\n+a\n+b\n");
        assert_eq!(of("a\n", ""), "--- live\n+++ merged\n@@ -1 +0,0 @@\n-a\n");
    }

    #[test]
    fn changes_that_are_far_apart_are_hunks_of_their_own() {
        let old: String = (0..30).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n3\n", "\nx\n").replace("\n25\n", "\n");
        let text = of(&old, &new);
        assert_eq!(text.matches("@@ -").count(), 2, "{text}");
        assert!(text.contains("-25\n") && text.contains("-3\n+x\n"), "{text}");
    }
}
