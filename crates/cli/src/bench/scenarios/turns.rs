//! A server that gets load in turns, while another rests. Compared turn by turn, both see the same machine.

use crate::bench::klambda::Klambda;
use crate::bench::report::Faults;
use crate::bench::rig::{Rig, Server, Sink, faults};
use crate::bench::round::{Plan, seconds};
use crate::bench::stats::{Interval, interval, median};
use crate::bench::{interrupt, usage};

pub struct Turns {
    pub server: Server,
    pub klambda: Klambda,
    pub rates: Vec<f64>,
    pub cpu_us: Vec<f64>,
    pub faults: Faults,
}

impl Turns {
    pub fn start(rig: &Rig, folder: &str) -> anyhow::Result<Turns> {
        let (server, klambda) = rig.klambda_in(rig.fresh_folder(folder)?)?;
        Ok(Turns { server, klambda, rates: Vec::new(), cpu_us: Vec::new(), faults: Faults::default() })
    }

    /// `aim` points the server at the target of this turn: the numbers of each load begin anew.
    pub fn turn(
        &mut self,
        rig: &Rig,
        plan: &Plan,
        aim: impl FnOnce(&Klambda, &Sink) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut sink = rig.sink(&plan.sink())?;
        aim(&self.klambda, &sink)?;
        let mut load = rig.load(&plan.load(&self.server))?;
        load.go()?;
        interrupt::sleep(plan.warm_up)?;
        let pid = self.server.child.pid();
        let (before, cpu_before) = (sink.mark()?, usage::cpu_us(pid)?);
        interrupt::sleep(plan.window)?;
        let (after, cpu_after) = (sink.mark()?, usage::cpu_us(pid)?);
        let delivered = (after.totals.delivered - before.totals.delivered) as f64;
        self.rates.push(delivered / seconds(before.at_ns, after.at_ns));
        self.cpu_us.push((cpu_after - cpu_before) as f64 / delivered.max(1.0));
        let accepted = load.stop()?.accepted;
        self.faults.add(faults(accepted, &sink.drain(accepted)?));
        Ok(())
    }

    pub fn rate(&self) -> f64 {
        median(self.rates.iter().copied())
    }

    pub fn cpu(&self) -> f64 {
        median(self.cpu_us.iter().copied())
    }

    /// Its rate as a share of the other's.
    pub fn rate_share(&self, other: &Turns) -> Interval {
        interval(&ratios(&self.rates, &other.rates))
    }

    /// The other's CPU per event as a share of its own: below 1 if this one needs more.
    pub fn cpu_share(&self, other: &Turns) -> Interval {
        interval(&ratios(&other.cpu_us, &self.cpu_us))
    }
}

fn ratios(above: &[f64], below: &[f64]) -> Vec<f64> {
    above.iter().zip(below).map(|(above, below)| above / below).collect()
}
