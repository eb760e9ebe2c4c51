//! Prints programs of consecutive seeds, one a line: the same as `netacc_lab` in Python, for use in a shell.

use netacc_program::{generate, Config, Mix, Shape};

fn main() {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let mut args = all.iter().filter_map(|a| a.parse::<u64>().ok());
    let mix = all.iter().find_map(|a| serde_json::from_str::<Mix>(&format!("{a:?}")).ok()).unwrap_or_default();
    let (from, count, len) = (args.next().unwrap_or(0), args.next().unwrap_or(1), args.next().unwrap_or(30));
    let config = Config { ring_bytes: 65536, ..Config::default() };
    for seed in from..from + count {
        let mut z = (seed + 1).wrapping_mul(0xd134_2543_de82_ef95).rotate_left(29);
        let mut next = move || {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = z;
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        let decisions: Vec<u64> = (0..len).map(|_| next()).collect();
        let program = generate(
            &Shape {
                processes: 1 + (next() % 3) as u8,
                mix,
                config,
                connections: 1 + (next() % 2) as u8,
                ..Shape::default()
            },
            &decisions,
        );
        println!("{{\"program\":{}}}", serde_json::to_string(&program).unwrap_or_default());
    }
}
