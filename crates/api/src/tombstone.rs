pub struct Tombstones;
pub struct TombstoneError;
