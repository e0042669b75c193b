pub struct Client;
pub struct Answer;
pub struct ClientError;
