//! All keys under a prefix, a page at a time: how far it is, and how large the next page may be. It asks nobody; [`Store`](super::store::Store)
//! does.
//!
//! What is in a page is told by its keys, not by their bytes, and whoever wrote the values decides how many bytes that is. So a page that turns
//! out too long is asked for again with half the keys, down to one; a key whose value alone is too long is skipped.

/// The most keys of a page.
const MOST: i64 = 4096;

/// How far a load is.
#[derive(Debug)]
pub struct Pages {
    /// The first key that is not known yet, while there may be some.
    from: Option<Vec<u8>>,
    most: i64,
}

impl Pages {
    /// At the beginning.
    pub fn under(prefix: &str) -> Self {
        Self { from: Some(prefix.as_bytes().to_vec()), most: MOST }
    }

    /// The page to ask for: its first key, and how many there may be; nothing at the end.
    pub fn next(&self) -> Option<(Vec<u8>, i64)> {
        self.from.clone().map(|from| (from, self.most))
    }

    /// A page came that ends with this key; there are more behind it, or none.
    pub fn came(&mut self, last: Option<&[u8]>, more: bool) {
        self.from = last.filter(|_| more).map(after);
        self.most = (2 * self.most).min(MOST);
    }

    /// The page is too long: the next one is the same with half the keys. False where it has one key alone.
    pub fn halve(&mut self) -> bool {
        let can = self.most > 1;
        self.most = (self.most / 2).max(1);
        can
    }

    /// Leaves one key out, the next one there is; nothing where there is none any more.
    pub fn skip(&mut self, key: Option<&[u8]>) {
        self.from = key.map(after);
    }
}

/// The next key there can be.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Reads values of these lengths, with pages of so many bytes: the keys that came, those that were skipped, and how often it asked.
    fn read(lengths: &[usize], longest: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, usize) {
        let key = |at: usize| format!("p/{at:05}").into_bytes();
        let all: BTreeMap<Vec<u8>, usize> =
            lengths.iter().enumerate().map(|(at, length)| (key(at), *length)).collect();
        let (mut came, mut skipped, mut asked) = (Vec::new(), Vec::new(), 0);
        let mut pages = Pages::under("p/");
        while let Some((from, most)) = pages.next() {
            asked += 1;
            let rest: Vec<(&Vec<u8>, &usize)> = all.range(from..).collect();
            let page = &rest[..rest.len().min(most as usize)];
            if page.iter().map(|(_, length)| **length).sum::<usize>() <= longest {
                came.extend(page.iter().map(|(key, _)| (*key).clone()));
                pages.came(page.last().map(|(key, _)| key.as_slice()), rest.len() > page.len());
            } else if !pages.halve() {
                let key = rest.first().map(|(key, _)| (*key).clone());
                pages.skip(key.as_deref());
                skipped.extend(key);
            }
        }
        (came, skipped, asked)
    }

    #[test]
    fn etcd_pages_bring_every_key_once_whatever_is_in_it() {
        assert_eq!(read(&[], 10), (vec![], vec![], 1));
        let (came, skipped, asked) = read(&[100; 10_000], 1 << 20);
        assert_eq!((came.len(), skipped.len(), asked), (10_000, 0, 3));
        assert!(came.is_sorted());
        // Forty-five values of the most that etcd takes, in the midst of others.
        let mut lengths = vec![100; 10_000];
        lengths[5000..5045].fill(3 << 19);
        let (came, skipped, asked) = read(&lengths, 16 << 20);
        assert_eq!((came.len(), skipped.len()), (10_000, 0));
        assert!(came.is_sorted() && asked < 60, "{asked}");
        // Values that no message has room for: at the beginning, beside each other, at the end.
        for at in [0, 5000, 5001, 9999] {
            lengths[at] = 17 << 20;
        }
        let (came, skipped, asked) = read(&lengths, 16 << 20);
        assert_eq!(came.len(), 9996);
        let wanted = ["p/00000", "p/05000", "p/05001", "p/09999"].map(|key| key.as_bytes().to_vec());
        assert_eq!(skipped, wanted);
        assert!(came.is_sorted() && asked < 150, "{asked}");
    }
}
