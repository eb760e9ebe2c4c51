//! What has come for the processes of a host.

/// News that a host's processes have not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// They have taken everything.
    None,
    /// The endpoint's device has something: queue pairs with completions, or events of the connection manager.
    Device,
    /// Only others have: the helper thread a deferred event, or programs that use verbs themselves.
    Others,
}
