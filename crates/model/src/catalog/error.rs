use std::fmt;

use crate::document::ObjectId;
use crate::fields::FieldError;
use crate::object::DecodeError;

/// Why an object cannot be set or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{cause}", Prefix(self))]
pub struct ObjectError {
    /// File and line of the document. Empty without a file.
    pub origin: String,
    /// None if the document does not name an object.
    pub object: Option<ObjectId>,
    #[source]
    pub cause: Box<ObjectErrorCause>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectErrorCause {
    #[error("{0}")]
    Field(FieldError),
    #[error("it is in use by {}", .users.join(", "))]
    InUse { users: Vec<String> },
    #[error("it exists in every cluster and cannot be removed")]
    Permanent,
    #[error("it does not exist{existing}")]
    NotFound { existing: String },
    #[error("it is not overwritten: {0}")]
    Newer(DecodeError),
    #[error("{0}, until other documents are applied; apply the documents in two steps")]
    NoOrder(Box<Self>),
    #[error("it exists already; 'podwire apply' changes it")]
    Exists,
    #[error("{0}; replace it with 'podwire apply'")]
    Unreadable(DecodeError),
    #[error("it has no rule {rule}; {}", Rules(.rules))]
    NoRule { rule: u32, rules: Vec<u32> },
    #[error("rule {rule} is the same")]
    SameRule { rule: u32 },
    #[error("it is described twice; the first description is {first}")]
    Twice { first: String },
}

impl ObjectError {
    pub(super) fn new(object: &ObjectId, cause: ObjectErrorCause) -> Self {
        Self { origin: String::new(), object: Some(object.clone()), cause: Box::new(cause) }
    }

    pub(super) fn field(object: &ObjectId, error: FieldError) -> Self {
        Self::new(object, ObjectErrorCause::Field(error))
    }
}

/// `objects.yaml:12: group web of tenant blue: `
struct Prefix<'a>(&'a ObjectError);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.origin.is_empty() {
            write!(f, "{}: ", self.0.origin)?;
        }
        self.0.object.iter().try_for_each(|object| write!(f, "{object}: "))
    }
}

/// `its rules are 1, 2`
struct Rules<'a>(&'a [u32]);

impl fmt::Display for Rules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("it has none"),
            [one] => write!(f, "its only rule is {one}"),
            all => {
                let all: Vec<String> = all.iter().map(u32::to_string).collect();
                write!(f, "its rules are {}", all.join(", "))
            }
        }
    }
}
