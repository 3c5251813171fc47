//! `--ui`: the story up to the fix. The user replays the failed event in the page of the server.

use super::line::Tone;
use super::script::{Draft, Language, MISSING, ORDERS, POISON};
use super::{Demo, LOOK};
use crate::bench::interrupt;
use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::thread;

impl Demo<'_> {
    /// Ends with Ctrl-C.
    pub(super) fn play_in_page(&mut self, language: Language) -> anyhow::Result<()> {
        let page = format!("{}/ui", self.stage.url());
        open(&page);
        self.begin("The page shows all of it", "demo --ui")?;
        self.scene.say(Tone::Good, format!("open {page}"));
        self.deploy("A function is deployed", Draft::First)?;
        self.arrive()?;
        self.fix(language)?;
        self.begin("Your turn, in the page", "demo --ui")?;
        let (missing, poison) = (ORDERS[MISSING.order], ORDERS[POISON.order]);
        self.scene.say(Tone::Plain, format!("{poison} is parked: open its lane, replay its dead letter"));
        self.scene.say(
            Tone::Plain,
            format!("{missing} waits for sequence {}: send it as an event, or skip it", MISSING.sequence),
        );
        self.scene.say(Tone::Good, format!("{page}#/overview"));
        self.scene.say(Tone::Dim, "Ctrl-C ends the server and removes its data");
        self.watch()
    }

    fn watch(&mut self) -> anyhow::Result<()> {
        while !interrupt::happened() {
            self.look()?;
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// Opens a browser, if there is a screen to show it on.
fn open(page: &str) {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| value != OsStr::new(""));
    if is_set("DISPLAY") || is_set("WAYLAND_DISPLAY") {
        let mut command = Command::new("xdg-open");
        command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Without a browser the user opens the printed address.
        let _ = command.spawn();
    }
}
