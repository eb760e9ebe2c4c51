//! Logarithm, exponential function and normal numbers in integers, so that what is drawn is the same on every machine: the
//! logarithm of one machine's library need not be that of another's.
//!
//! A fixed-point number has 32 bits of fraction, unless a comment says otherwise.

/// One, as a fixed-point number.
pub const ONE: i64 = 1 << 32;

/// ln 2.
const LN_2: u128 = 2_977_044_472;

/// 1 / ln 2.
const LOG2_E: i128 = 6_196_328_019;

/// Greatest argument of [`exp`], and minus its least: further out it returns the value there.
const EXP_MOST: i64 = 40 * ONE;

/// Bits of fraction of the factors that [`exp`] multiplies.
const FACTOR_BITS: u32 = 62;

/// 2 to the power of 1/2, 1/4, 1/8 ..., with [`FACTOR_BITS`].
const ROOTS: [u128; 32] = {
    let mut roots = [0; 32];
    let mut value: u128 = 2 << FACTOR_BITS;
    let mut index = 0;
    while index < 32 {
        value = (value << FACTOR_BITS).isqrt();
        roots[index] = value;
        index += 1;
    }
    roots
};

/// Minus the natural logarithm of `bits / 2^64`, of 1 for 0. Of random bits: exponentially distributed with mean 1.
pub fn exponential(bits: u64) -> u64 {
    // Below 2^64, so that it is at least one bit short of 1.
    let value = bits.max(1);
    let shift = value.leading_zeros();
    // The value is mantissa times 2^-(shift + 1), the mantissa in [1, 2) with 31 bits of fraction.
    let mut mantissa = (value << shift) >> 32;
    let mut fraction: u64 = 0;
    for _ in 0..32 {
        // Squaring doubles the logarithm: the carry is its next bit.
        mantissa = (mantissa * mantissa) >> 31;
        fraction <<= 1;
        if mantissa >= 1 << 32 {
            mantissa >>= 1;
            fraction |= 1;
        }
    }
    let log2 = (u64::from(shift + 1) << 32) - fraction;
    ((u128::from(log2) * LN_2) >> 32) as u64
}

/// A normally distributed number with mean 0 and deviation 1, by Marsaglia's polar method.
pub fn normal(random: &mut dyn FnMut() -> u64) -> i64 {
    loop {
        // From -1 to 1, with 31 bits of fraction.
        let mut coordinate = || i64::from((random() >> 32) as u32) - (1 << 31);
        let (x, y) = (coordinate(), coordinate());
        // With 62 bits of fraction. The point is within the circle, and not so near its middle that a step below overflows.
        let square = (x * x) as u64 + (y * y) as u64;
        if !(1 << 20..1 << 62).contains(&square) {
            continue;
        }
        let ratio = (u128::from(2 * exponential(square << 2)) << 62) / u128::from(square);
        let root = (ratio << 32).isqrt();
        return ((i128::from(x) * root as i128) >> 31) as i64;
    }
}

/// The product of a whole number and e to the power of `power`.
pub fn scale_exp(number: u64, power: i64) -> u64 {
    let power = (i128::from(power.clamp(-EXP_MOST, EXP_MOST)) * LOG2_E) >> 32;
    let (whole, fraction) = ((power >> 32) as i32, power as u32);
    let mut factor: u128 = 1 << FACTOR_BITS;
    for (index, root) in ROOTS.iter().enumerate() {
        if fraction >> (31 - index) & 1 == 1 {
            factor = (factor * root) >> FACTOR_BITS;
        }
    }
    // At most 2^64 times 2^63.
    let product = u128::from(number) * factor;
    let shift = FACTOR_BITS as i32 - whole;
    let product = if shift >= 128 { 0 } else { product >> shift };
    u64::try_from(product).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if the logarithm or the power is another function.
    #[test]
    fn functions_are_those_of_mathematics() {
        assert!(exponential(u64::MAX) < 256, "{}", exponential(u64::MAX));
        assert_eq!(exponential(1 << 63) >> 20, LN_2 as u64 >> 20);
        for thousandths in (-9_000..9_000).step_by(7) {
            let power = f64::from(thousandths) / 1000.0;
            let found = scale_exp(1_000_000_000, (power * ONE as f64) as i64) as f64;
            let expected = 1e9 * power.exp();
            assert!((found - expected).abs() <= 1.0 + expected * 1e-8, "{power}: {found} for {expected}");
        }
        assert_eq!(scale_exp(7, 0), 7);
        assert_eq!(scale_exp(u64::MAX, i64::MAX), u64::MAX);
        assert_eq!(scale_exp(u64::MAX / 2, i64::MIN), 39);
    }
}
