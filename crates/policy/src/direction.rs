//! Values per direction.

use std::ops::{Index, IndexMut};

use model::objects::Direction;

pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// One value per direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PerDirection<T> {
    pub(crate) ingress: T,
    pub(crate) egress: T,
}

impl<T> Index<Direction> for PerDirection<T> {
    type Output = T;
    fn index(&self, direction: Direction) -> &T {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

impl<T> IndexMut<Direction> for PerDirection<T> {
    fn index_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::Ingress => &mut self.ingress,
            Direction::Egress => &mut self.egress,
        }
    }
}
