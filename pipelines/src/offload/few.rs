//! A list that has one entry nearly always: what hashes to one place.

/// One entry in place, more of them elsewhere. Never empty.
#[derive(Debug)]
pub enum Few<T> {
    /// A single entry, kept in place.
    One(T),
    /// Two and more, in order.
    More(Vec<T>),
}

impl<T: Copy> Few<T> {
    /// All entries, in order.
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(entry) => std::slice::from_ref(entry),
            Self::More(entries) => entries,
        }
    }

    /// Adds an entry in front of the first one for which `behind` is true.
    pub fn insert(&mut self, entry: T, behind: impl Fn(&T) -> bool) {
        let at = self.as_slice().iter().position(behind).unwrap_or(self.as_slice().len());
        if let Self::One(other) = self {
            *self = Self::More(vec![*other]);
        }
        if let Self::More(entries) = self {
            entries.insert(at, entry);
        }
    }

    /// Takes out the entries for which `gone` is true. True when none is left: what is here then is to be forgotten.
    pub fn remove(&mut self, gone: impl Fn(&T) -> bool) -> bool {
        match self {
            Self::One(entry) => gone(entry),
            Self::More(entries) => {
                entries.retain(|entry| !gone(entry));
                entries.is_empty()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_order_however_many() {
        let mut few = Few::One(5);
        for n in [7, 3, 6] {
            few.insert(n, |other| *other > n);
        }
        assert_eq!(few.as_slice(), [3, 5, 6, 7]);
        assert!(!few.remove(|n| *n == 5 || *n == 3));
        assert!(!few.remove(|n| *n == 6));
        assert_eq!(few.as_slice(), [7]);
        assert!(few.remove(|n| *n == 7));
        assert!(Few::One(1).remove(|n| *n == 1) && !Few::One(1).remove(|n| *n == 2));
    }
}
