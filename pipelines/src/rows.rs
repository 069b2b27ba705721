//! A row for each vNIC, VPC or the like, by index.

/// Rows that are there from the start. An index past the end shares the last row rather than fail: the packet path
/// never panics over one.
#[derive(Debug)]
pub struct Rows<T>(Box<[T]>);

impl<T: Default> Default for Rows<T> {
    /// A single row, as no table is without one.
    fn default() -> Self {
        Self::new(1, T::default)
    }
}

impl<T> Rows<T> {
    /// `count` rows, at least one.
    pub fn new(count: usize, row: impl FnMut() -> T) -> Self {
        Self(std::iter::repeat_with(row).take(count.max(1)).collect())
    }

    /// The row of an index.
    #[inline(always)]
    pub fn at(&self, index: u32) -> &T {
        &self.0[(index as usize).min(self.0.len() - 1)]
    }

    /// The row of an index, to change it.
    #[inline(always)]
    pub fn at_mut(&mut self, index: u32) -> &mut T {
        let last = self.0.len() - 1;
        &mut self.0[(index as usize).min(last)]
    }

    /// All rows, by index.
    pub fn all(&self) -> &[T] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_past_the_end_share_the_last_row() {
        let mut rows = Rows::new(3, || 0);
        *rows.at_mut(1) += 1;
        *rows.at_mut(2) += 1;
        *rows.at_mut(u32::MAX) += 1;
        assert_eq!((rows.all(), *rows.at(9)), ([0, 1, 2].as_slice(), 2));
        assert_eq!(Rows::new(0, || 7).at(0), &7);
    }
}
