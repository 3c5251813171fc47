//! The durable state: a log that is the single truth, and sorted tables of what the log amounts to.

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
