//! Faults of the disk and the clock.

use crate::mix::{Mix, Trouble};
use crate::rng::Rng;
use klambda_store::faulty_disk::{MemoryDisk, Op};

const OPS: [Op; 7] = [Op::Read, Op::Write, Op::Sync, Op::SyncNames, Op::Create, Op::Rename, Op::Remove];

/// The current faults.
#[derive(Default)]
pub struct Faults {
    /// The disk is full until this round.
    full_until: Option<u64>,
}

/// A fault that the history records.
pub enum Fault {
    DiskFull(bool),
    /// The n-th operation of this kind from now fails.
    DiskError {
        op: &'static str,
        n: u64,
    },
    /// The offset of the clock from now on, in milliseconds.
    Clock(i64),
}

impl Faults {
    pub fn round(&mut self, mix: &Mix, disk: &MemoryDisk, round: u64, rng: &mut Rng) -> Option<Fault> {
        if mix.has(Trouble::DiskError) && rng.one_in(150) {
            return Some(self.fail(disk, 60, rng));
        }
        if let Some(until) = self.full_until
            && (round >= until || !mix.has(Trouble::FullDisk))
        {
            self.full_until = None;
            disk.set_capacity(None);
            return Some(Fault::DiskFull(false));
        }
        if mix.has(Trouble::FullDisk) && self.full_until.is_none() && rng.one_in(200) {
            self.full_until = Some(round + rng.between(5, 60));
            disk.set_capacity(Some(disk.used_bytes() + rng.below(mix.segment_bytes * 2)));
            return Some(Fault::DiskFull(true));
        }
        if mix.has(Trouble::ClockJump) && rng.one_in(150) {
            return Some(Fault::Clock(jump(rng)));
        }
        None
    }

    /// Injects a failure that may interrupt a recovery.
    pub fn recovery(&mut self, disk: &MemoryDisk, rng: &mut Rng) -> Fault {
        self.fail(disk, 40, rng)
    }

    fn fail(&mut self, disk: &MemoryDisk, n_max: u64, rng: &mut Rng) -> Fault {
        let (op, n) = (*rng.pick(&OPS), rng.between(1, n_max));
        disk.fail_nth(op, n);
        Fault::DiskError { op: name(op), n }
    }
}

fn name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Sync => "sync",
        Op::SyncNames => "sync of the folder",
        Op::Create => "creation",
        Op::Rename => "rename",
        Op::Remove => "removal",
    }
}

fn jump(rng: &mut Rng) -> i64 {
    const HOUR_MS: i64 = 3_600_000;
    match rng.below(6) {
        0 => -(rng.below(5_000) as i64),
        1 => -HOUR_MS,
        2 => HOUR_MS,
        3 => 26 * HOUR_MS,
        _ => rng.below(5_000) as i64,
    }
}
