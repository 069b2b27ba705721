//! Things by number; numbers are used again.

/// Things by number. A number is used again once its thing is gone.
pub struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A number for a thing.
    pub fn add(&mut self, thing: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.slots[number as usize] = Some(thing);
            return number;
        }
        self.slots.push(Some(thing));
        self.slots.len() as u32 - 1
    }

    /// The thing with a number.
    pub fn at(&self, number: u32) -> Option<&T> {
        self.slots.get(number as usize)?.as_ref()
    }

    /// The same, to be changed.
    pub fn at_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    /// Takes a thing out.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let thing = self.slots.get_mut(number as usize)?.take();
        self.free.extend(thing.is_some().then_some(number));
        thing
    }

    /// A number for a thing that comes later.
    pub fn add_empty(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        })
    }

    /// The thing with a number, put there if there is none.
    pub fn get_or_put(&mut self, number: u32, fresh: impl FnOnce() -> T) -> &mut T {
        let at = number as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.slots[at].get_or_insert_with(fresh)
    }

    /// The number behind the last that was ever given.
    pub fn end(&self) -> u32 {
        self.slots.len() as u32
    }

    /// All things, by number.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    /// The same by number, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(number, slot)| Some((number, slot.as_mut()?)))
    }
}
