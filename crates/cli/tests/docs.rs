//! The documents do what they say: every command in them is run, and every name in them exists.

mod support;

use support::session::follow;

#[test]
fn the_readme() {
    follow("README.md");
}
