//! Sans-IO state machines of streams and links: promotion, demotion, resumption, credit.
