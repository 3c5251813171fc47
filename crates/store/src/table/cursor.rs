//! Iterates over the rows of one or several tables in key order.

use super::block::Rows;
use super::layout::Extent;
use super::{Error, Table};

/// A key with its value or a tombstone.
pub type Row = (Vec<u8>, Option<Vec<u8>>);
pub(crate) type RowRef<'a> = (&'a [u8], Option<&'a [u8]>);

/// Rows in key order. Holds the files open, so it continues even if the tables are removed from their set.
pub struct Scan(Result<Merged, Option<Error>>);

impl Scan {
    /// `tables`: newest first.
    pub(crate) fn new(tables: &[Table], from: &[u8]) -> Scan {
        Scan(Merged::new(tables, from).map_err(Some))
    }

    fn step(&mut self) -> Result<Option<Row>, Error> {
        match &mut self.0 {
            Ok(merged) => Ok(merged.next()?.map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec)))),
            Err(error) => error.take().map_or(Ok(None), Err),
        }
    }
}

impl Iterator for Scan {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if !matches!(step, Ok(Some(_))) {
            self.0 = Err(None);
        }
        step.transpose()
    }
}

/// Merges several tables. If a key is in more than one, the newest version counts. No allocation per row.
pub(crate) struct Merged {
    /// Newest first; each is on a row. The current cursor is the first of those with the smallest key.
    cursors: Vec<Cursor>,
    current: Option<usize>,
}

impl Merged {
    /// `tables`: newest first.
    pub(crate) fn new(tables: &[Table], from: &[u8]) -> Result<Merged, Error> {
        let mut cursors = Vec::with_capacity(tables.len());
        for table in tables.iter().filter(|table| *from <= *table.0.top.largest) {
            let mut cursor = Cursor::seek(table, from)?;
            if cursor.advance_to(from)? {
                cursors.push(cursor);
            }
        }
        Ok(Merged { cursors, current: None })
    }

    pub(crate) fn next(&mut self) -> Result<Option<RowRef<'_>>, Error> {
        if let Some(current) = self.current.take() {
            self.leave(current)?;
        }
        // `min_by` returns the first of equal keys, which is the newest.
        let smallest =
            self.cursors.iter().enumerate().min_by(|(_, a), (_, b)| a.rows.key().cmp(b.rows.key()));
        self.current = smallest.map(|(at, _)| at);
        Ok(self.current.map(|at| (self.cursors[at].rows.key(), self.cursors[at].rows.value())))
    }

    /// Moves all cursors past the current key. Only older cursors, after `current`, can be on the same key.
    fn leave(&mut self, current: usize) -> Result<(), Error> {
        for at in (current + 1..self.cursors.len()).rev() {
            if self.cursors[at].rows.key() == self.cursors[current].rows.key() {
                self.step(at)?;
            }
        }
        self.step(current)
    }

    fn step(&mut self, at: usize) -> Result<(), Error> {
        if !self.cursors[at].advance()? {
            self.cursors.remove(at);
        }
        Ok(())
    }
}

struct Cursor {
    table: Table,
    next_group: usize,
    /// The remaining data blocks of the current group.
    blocks: std::vec::IntoIter<Extent>,
    rows: Rows<Vec<u8>>,
    block_offset: u64,
}

impl Cursor {
    /// A cursor before the first row of the block that can contain `from`.
    fn seek(table: &Table, from: &[u8]) -> Result<Cursor, Error> {
        let group = table.group_of(from).unwrap_or(0);
        let blocks = match group < table.0.top.groups.len() {
            true => table.blocks_from(group, from)?,
            false => Vec::new(),
        };
        let (blocks, rows) = (blocks.into_iter(), Rows::new(Vec::new()));
        Ok(Cursor { table: table.clone(), next_group: group + 1, blocks, rows, block_offset: 0 })
    }

    fn advance_to(&mut self, from: &[u8]) -> Result<bool, Error> {
        while self.advance()? {
            if self.rows.key() >= from {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn advance(&mut self) -> Result<bool, Error> {
        loop {
            let source = &self.table.0.source;
            if self.rows.advance().map_err(|what| source.damaged(self.block_offset, what))? {
                return Ok(true);
            }
            let Some(extent) = self.next_block()? else { return Ok(false) };
            self.block_offset = extent.offset;
            self.rows.reset(self.table.0.source.read_block(extent)?);
        }
    }

    fn next_block(&mut self) -> Result<Option<Extent>, Error> {
        while self.blocks.len() == 0 && self.next_group < self.table.0.top.groups.len() {
            self.blocks = self.table.blocks_from(self.next_group, b"")?.into_iter();
            self.next_group += 1;
        }
        Ok(self.blocks.next())
    }
}
