//! Durable state: a log, which is the single source of truth, and sorted tables derived from it.

pub mod address;
pub mod bloom;
pub mod chore;
pub mod disk;
pub mod faulty_disk;
pub mod inspect;
pub mod log;
pub mod manifest;
pub mod marks;
pub mod real_disk;
pub mod record;
pub mod recovery;
pub mod rows;
pub mod segment;
pub mod table;
pub mod tables;
pub mod witness;
