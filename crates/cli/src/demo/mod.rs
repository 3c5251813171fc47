//! `demo`: a tour in one terminal. It deploys a function, sends the events of three orders in the wrong order, lets one
//! fail, fixes the function, replays the failed event, and checks the result from outside.

mod line;
mod page;
mod proof;
mod scene;
mod screen;
mod script;
mod stage;
mod svg;

use self::line::Tone;
use self::proof::{Claim, Sent};
use self::scene::Scene;
use self::screen::Screen;
use self::script::{Draft, FUNCTION, Language, MISSING, ORDERS, POISON, SUBSCRIPTION, Step};
use self::stage::Stage;
use crate::bench::interrupt;
use crate::exit::Usage;
use crate::function::{Progress, progress};
use crate::output::{counted, number};
use anyhow::bail;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the demo polls, the time between two events, and the limit for each part.
const LOOK: Duration = Duration::from_millis(40);
const APART: Duration = Duration::from_millis(80);
const PATIENCE: Duration = Duration::from_secs(30);
/// Time to read between two parts.
const BREATH: Duration = Duration::from_millis(1_500);

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Print line by line instead of drawing [default if stdout is not a terminal]
    #[arg(long)]
    pub plain: bool,
    /// Also record the demo as an animated SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Stop before the replay and show the story in the page of the server, until Ctrl-C
    #[arg(long, conflicts_with = "svg")]
    pub ui: bool,
    /// Language of the function [default: the first one that is installed]
    #[arg(long, value_enum)]
    language: Option<Language>,
}

pub fn run(out: &mut dyn Write, args: &Args) -> anyhow::Result<()> {
    let Some(language) = args.language.or_else(Language::find) else {
        return Err(Usage(
            "the demo runs a function in Python or Node.js; install python3 or node".to_owned(),
        )
        .into());
    };
    interrupt::listen()?;
    let screen = Screen::new(out, args.plain, args.svg.is_some());
    let (scene, stage) = (Scene::new(language), Stage::set(language)?);
    let mut demo = Demo { stage, scene, screen, sent: Vec::new() };
    if args.ui {
        let shown = demo.play_in_page(language);
        return shown.map_err(|error| demo.stage.explain(error));
    }
    let played = demo.play(language);
    let played = played.map_err(|error| demo.stage.explain(error));
    // A recording also helps when the demo fails.
    if let Some(file) = &args.svg {
        let picture = svg::picture(&demo.screen.frames());
        std::fs::write(file, picture).map_err(|error| Usage::file(file, &error))?;
    }
    match played?.iter().filter(|claim| !claim.holds).count() {
        0 => Ok(()),
        count => bail!("{} failed", counted(count as u64, "check")),
    }
}

struct Demo<'a> {
    stage: Stage,
    scene: Scene,
    screen: Screen<'a>,
    sent: Vec<Sent>,
}

impl Demo<'_> {
    fn play(&mut self, language: Language) -> anyhow::Result<Vec<Claim>> {
        self.deploy("A function is deployed", Draft::First)?;
        self.arrive()?;
        self.fill_the_gap()?;
        self.fix(language)?;
        self.replay()?;
        self.prove()
    }

    fn deploy(&mut self, what: &str, draft: Draft) -> anyhow::Result<()> {
        self.begin(what, &format!("apply -f {FUNCTION}.yaml"))?;
        let started = Instant::now();
        self.stage.apply(draft)?;
        self.until("the function is ready", |demo| match progress(&demo.stage.function()?) {
            Progress::Done => Ok(true),
            Progress::Underway => Ok(false),
            Progress::Failed(why) => bail!("the function is not ready: {why}"),
        })?;
        let took = started.elapsed().as_millis();
        self.scene.say(Tone::Plain, format!("built, started and answering after {took} ms"));
        self.breathe()
    }

    fn arrive(&mut self) -> anyhow::Result<()> {
        self.begin("Events arrive out of order", "event send -f events.jsonl")?;
        for step in script::arrivals() {
            self.send(step)?;
            self.pause(APART)?;
        }
        let skipped = self.sent.iter().filter(|sent| !sent.accepted).count();
        let (count, accepted) = (self.sent.len(), self.sent.len() - skipped);
        self.scene
            .say(Tone::Plain, format!("{count} sent: {accepted} accepted, {skipped} skipped as a duplicate"));
        self.until("one order is done, one waits and one is parked", |demo| {
            let scene = &demo.scene;
            Ok(scene.is_done(0)
                && scene.lane_is(MISSING.order, "gap")
                && scene.lane_is(POISON.order, "parked"))
        })?;
        let (missing, poison) = (ORDERS[MISSING.order], ORDERS[POISON.order]);
        self.scene.say(
            Tone::Plain,
            format!("{missing} waits for a missing event; {poison} is parked behind a failed one"),
        );
        self.screen.sum_up(&self.scene)?;
        self.breathe()
    }

    fn fill_the_gap(&mut self) -> anyhow::Result<()> {
        let command = format!("event send --key {} --sequence {} …", ORDERS[MISSING.order], MISSING.sequence);
        self.begin("The missing event arrives", &command)?;
        self.send(MISSING)?;
        self.until("the order that waited is done", |demo| Ok(demo.scene.is_done(MISSING.order)))?;
        let parked = ORDERS[POISON.order];
        self.scene.say(Tone::Plain, format!("the other orders are done; {parked} needs manual action"));
        self.breathe()
    }

    fn fix(&mut self, language: Language) -> anyhow::Result<()> {
        let (before, after) = (language.line(Draft::First), language.line(Draft::Fixed));
        self.begin("The handler is fixed", &format!("apply -f {FUNCTION}.yaml"))?;
        self.scene.say(Tone::Bad, format!("- {before}"));
        self.scene.say(Tone::Good, format!("+ {after}"));
        let started = Instant::now();
        self.stage.apply(Draft::Fixed)?;
        self.until("the fixed function is ready", |demo| match progress(&demo.stage.function()?) {
            Progress::Done => Ok(true),
            Progress::Underway => Ok(false),
            Progress::Failed(why) => bail!("the fixed function is not ready: {why}"),
        })?;
        let took = started.elapsed().as_millis();
        self.scene.say(
            Tone::Plain,
            format!("built while the old version kept serving; rolled out after {took} ms"),
        );
        self.breathe()
    }

    fn replay(&mut self) -> anyhow::Result<()> {
        self.begin("A replay continues in order", &format!("dlq replay --subscription {SUBSCRIPTION}"))?;
        let dry = self.stage.replay(true)?;
        let (selected, keys) = (number(&dry, "/selected"), number(&dry, "/keys"));
        self.scene.say(
            Tone::Plain,
            format!(
                "dry run: {} of {} would be replayed",
                counted(selected, "dead letter"),
                counted(keys, "key")
            ),
        );
        self.breathe()?;
        self.stage.replay(false)?;
        self.until("the parked order is done", |demo| Ok(demo.scene.is_done(POISON.order)))?;
        self.scene.say(
            Tone::Plain,
            "the failed event was replayed first, with its old number; the pending events followed",
        );
        self.breathe()
    }

    fn prove(&mut self) -> anyhow::Result<Vec<Claim>> {
        self.begin("The result, checked outside", "check data")?;
        let mut claims = proof::claims(&self.sent, &self.stage.journal());
        let report = self.stage.check()?;
        let (events, problems) = (report.events, report.problems.count);
        let text = format!("the log, read by an independent checker: {events} events, {problems} problems");
        claims.push(Claim { text, holds: problems == 0 });
        for claim in &claims {
            self.scene.claim(claim);
        }
        self.screen.show(&self.scene)?;
        Ok(claims)
    }

    fn send(&mut self, step: Step) -> anyhow::Result<()> {
        let accepted = self.stage.send(step)?;
        self.sent.push(Sent { step, accepted });
        self.scene.accept(step);
        Ok(())
    }

    fn begin(&mut self, what: &str, command: &str) -> anyhow::Result<()> {
        self.scene.begin(what, command);
        self.screen.show(&self.scene)
    }

    fn look(&mut self) -> anyhow::Result<()> {
        self.scene.see(self.stage.function()?, self.stage.lanes()?, self.stage.journal());
        self.screen.show(&self.scene)
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.look()?;
            if is_so(self)? {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("timed out after {} s; expected: {what}", PATIENCE.as_secs());
            }
            interrupt::sleep(LOOK)?;
        }
    }

    /// Keeps the screen up to date for a while.
    fn pause(&mut self, length: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + length;
        loop {
            self.look()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            interrupt::sleep(left.min(LOOK))?;
        }
    }

    fn breathe(&mut self) -> anyhow::Result<()> {
        self.pause(if self.screen.takes_time() { BREATH } else { Duration::ZERO })
    }
}
