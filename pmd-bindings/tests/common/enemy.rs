//! Frames of containers that mean harm, and the virtio-net headers in front of them.

/// xorshift64: the same frames every time.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }

    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.next(of.len())]
    }
}

/// Ethernet and IP with TCP, UDP, VxLAN, nothing sensible, or a tag, with lengths that are right or not; the protocol, and where its
/// header begins.
pub fn frame(random: &mut Random) -> (Vec<u8>, u8, usize) {
    let longest = random.one_of(&[100, 1500, 1500, 1990, 4000, 65_000, 150_000]);
    let length = 14 + random.next(longest);
    let mut bytes: Vec<u8> = (0..length).map(|_| random.next(256) as u8).collect();
    let ethertype: &[u8] = random.one_of(&[&[8, 0], &[8, 0], &[0x86, 0xdd], &[0x81, 0, 0, 5, 8, 0], &[1, 2]]);
    let ip = 12 + ethertype.len();
    let mut put = |at: usize, what: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + what.len()) {
            place.copy_from_slice(what);
        }
    };
    put(12, ethertype);
    let protocol = random.one_of(&[6, 17, 17, 1, 89]);
    let total = if random.next(8) == 0 { random.next(65_536) } else { length - 14 };
    let (l4, l4_total) = if ethertype.ends_with(&[0x86, 0xdd]) {
        put(ip, &[0x60, 0, 0, 0]);
        put(ip + 4, &(total.saturating_sub(40) as u16).to_be_bytes());
        put(ip + 6, &[protocol, 64]);
        (ip + 40, total.saturating_sub(40))
    } else {
        put(ip, &[if random.next(8) == 0 { random.next(256) as u8 } else { 0x45 }, 0]);
        put(ip + 2, &(total as u16).to_be_bytes());
        put(ip + 6, &[if random.next(8) == 0 { 0x20 } else { 0x40 }, 0, 64, protocol]);
        (ip + 20, total.saturating_sub(20))
    };
    if protocol == 17 {
        put(l4 + 2, &random.one_of(&[4789u16, 4791, 53]).to_be_bytes());
        put(l4 + 4, &(l4_total as u16).to_be_bytes());
    } else {
        put(l4 + 12, &[random.one_of(&[0x50, 0x80, 0xf0, 0x10]), random.one_of(&[0x10, 0x18, 0x12, 0xff])]);
    }
    (bytes, protocol, l4)
}

/// A header that the kernel is likely to take, but for one field.
pub fn header(random: &mut Random, protocol: u8, l4: usize) -> [u8; 10] {
    let is_udp = protocol == 17;
    let flags = random.one_of(&[0, 1, 1, 1, 1, 2, 3]);
    let cut = if is_udp { 5 } else { random.one_of(&[1, 1, 4, 0x81]) };
    let kind = random.one_of(&[0, cut, cut]);
    let mut words =
        [l4 + if is_udp { 8 } else { 20 }, random.one_of(&[1448, 500, 100]), l4, if is_udp { 6 } else { 16 }];
    if random.next(2) == 0 {
        words[random.next(4)] = random.one_of(&[0, 1, 54, 84, 1448, 65_535]);
    }
    let mut header = [flags, kind, 0, 0, 0, 0, 0, 0, 0, 0];
    for (at, word) in words.into_iter().enumerate() {
        header[2 + 2 * at..4 + 2 * at].copy_from_slice(&(word as u16).to_ne_bytes());
    }
    if random.next(8) == 0 {
        header[random.next(10)] = random.next(256) as u8;
    }
    header
}
