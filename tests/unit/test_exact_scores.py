"""The walk between two contractions: where it ends, and what it has gathered."""

import pytest

from tests.score_worlds import END, MASKED, end_of, graph_of

# steps from the product `raw` to the scores `x`, which are masked and go through the softmax
STEPS = """
x = Mul (raw, two)
> raw | p m x | 2 | | | DEAD, LIVE
x = Mul (two, raw)
> raw | p m x | 2 | | | DEAD, LIVE
x = Div (raw, two)
> raw | p m x | 0.5 | | | DEAD, LIVE
x = Div (two, raw)
> NO_LOWERING at x
x = Mul (raw, zero)
> NO_LOWERING at x
x = Mul (raw, tiny)
> NO_LOWERING at x
x = Mul (raw, pinf)
> NO_LOWERING at x
x = Mul (raw, number)
> NO_LOWERING at x
x = Mul (raw, bias)
> NO_LOWERING at x
y = Mul (raw, half)  x = Mul (y, half)
> raw | p m x y | 0.25 | | | DEAD, LIVE
w = Where (live, two, one)  x = Mul (raw, w)
> raw | p m x | 2 | | | DEAD, LIVE, LIVE
w = Where (live, two, number)  x = Mul (w, raw)
> raw | p m x | 2 | | | DEAD, LIVE, LIVE
w = Where (keep, two, half)  x = Mul (raw, w)
> NO_LOWERING at x
w = Expand (two, size)  x = Mul (w, raw)
> raw | p m x | 2 | | | DEAD, LIVE, ALL
x = Add (raw, bias)
> raw | p m x | 1 | bias | | DEAD, LIVE
x = Add (bias, raw)
> raw | p m x | 1 | bias | | DEAD, LIVE
c = Neg (bias)  x = Add (c, raw)
> raw | p m x | 1 | c | | DEAD, LIVE
c = MatMul (bias, other)  x = Add (c, raw)
> c | p m x | 1 | raw | | DEAD, LIVE
c = MatMul (bias, other)  x = Add (raw, c)
> raw | p m x | 1 | c | | DEAD, LIVE
x = Add (raw, small)
> raw | p m x | 1 | small | | DEAD, QUERY and LOW, LIVE, LIVE
x = Add (small, raw)
> raw | p m x | 1 | small | | DEAD, QUERY and LOW, LIVE, LIVE
x = Sum (raw, bias)
> raw | p m x | 1 | bias | | DEAD, LIVE
x = Add (raw, zero)
> raw | p m x | 1 | | | DEAD, LIVE
x = Sub (raw, zero)
> raw | p m x | 1 | | | DEAD, LIVE
x = Add (zero, raw)
> raw | p m x | 1 | | | DEAD, LIVE
x = Add (raw, one)
> raw | p m x | 1 | one | | DEAD, LIVE
x = Sub (raw, bias)
> NO_LOWERING at x
x = Sub (bias, raw)
> NO_LOWERING at x
x = Sub (zero, raw)
> NO_LOWERING at x
x = Max (raw, zero)
> NO_LOWERING at x
x = Sum (raw, bias, other)
> NO_LOWERING at x
x = Sum (raw, zero, zero)
> NO_LOWERING at x
x = Relu (raw)
> NO_LOWERING at x
x = Clip (raw, , five)
> NO_LOWERING at x
x = Clip (raw)
> NO_LOWERING at x
y = Add (raw, bias)  x = Mul (y, two)
> NO_LOWERING at y
y = Mul (raw, two)  x = Add (y, bias)
> raw | p m x y | 2 | bias | | DEAD, LIVE
y = Add (raw, bias)  x = Add (y, other)
> NO_LOWERING at raw
a = Mul (bias, other)  c = Mul (other, tall)  y = Add (raw, a)  x = Add (y, c)
> raw | p m x y | 1 | c a | bounded | DEAD, LIVE
a = Mul (bias, other)  c = Mul (other, tall)  y = Add (raw, a)  z = Add (y, c)
t = Tanh (small)  x = Add (z, t)
> raw | p m x z y | 1 | t c a | bounded | DEAD, LIVE
x = Cast <to = 1> (raw)
> raw | p m | 1 | | | DEAD, LIVE
h = Cast <to = 10> (raw)  x = Cast <to = 1> (h)
> NO_LOWERING at x
x = Where (keep, raw, ninf)
> raw | p m x | 1 | keep[False]=-inf | | DEAD, LIVE, ALL
x = Where (keep, ninf, raw)
> raw | p m x | 1 | keep[True]=-inf | | DEAD, LIVE, ALL
x = Where (keep, raw, low)
> raw | p m x | 1 | keep[False]=-3e+38 | bounded | DEAD, LIVE, ALL
x = Where (keep, low, raw)
> raw | p m x | 1 | keep[True]=-3e+38 | bounded | DEAD, LIVE, ALL
x = Where (keep, raw, five)
> NO_FACT at x
x = Where (keep, raw, bias)
> NO_FACT at x
x = Where (flag, raw, ninf)
> raw | p m x | 1 | | | DEAD, flag[] == 0, LIVE, flag[] != 0
x = Where (yes, raw, ninf)
> raw | p m x | 1 | | | DEAD, LIVE
x = Where (no, ninf, raw)
> raw | p m x | 1 | | | DEAD, LIVE
x = Where (live, raw, bias)
> raw | p m x | 1 | | | DEAD, LIVE, LIVE
x = Where (live, bias, raw)
> NO_LOWERING at bias
x = Where (keep, small, ninf)
> LAYOUT at x
x = Where (yes, small, raw)
> LAYOUT at x
x = Where (keep, bias, ninf)
> NO_LOWERING at bias
c = Log (raw)  x = Where (keep, c, ninf)
> NO_FACT at x
c = Sqrt (raw)  x = Where (keep, c, low)
> NO_FACT at x
y = Mul (raw, two)  x = Where (keep, y, ninf)
> raw | p m x y | 2 | keep[False]=-inf | | DEAD, LIVE, ALL
y = Where (keep, raw, low)  x = Add (y, bias)
> NO_LOWERING at raw
y = Add (raw, bias)  x = Where (keep, y, low)
> NO_LOWERING at raw
y = Where (keep, raw, ninf)  x = Add (y, bias)
> raw | p m x y | 1 | bias keep[False]=-inf | bounded | DEAD, LIVE, ALL
y = Add (raw, bias)  x = Where (keep, y, ninf)
> raw | p m x y | 1 | keep[False]=-inf bias | bounded | DEAD, LIVE, ALL
e = Expand (keep, size)  x = Where (e, raw, ninf)
> raw | p m x | 1 | keep[False]=-inf | | DEAD, LIVE, ALL
e = Expand (small, size)  x = Add (raw, e)
> raw | p m x | 1 | small | | DEAD, LIVE
e = Expand (number, size)  x = Add (raw, e)
> raw | p m x | 1 | e | | DEAD, LIVE
n = IsNaN (raw)  x = Where (n, zero, raw)
> NO_FACT at x
u = Unsqueeze (raw, top)  x = Squeeze (u, top)
> raw | p m x u | 1 | | | DEAD, LIVE
x = Identity (raw)
> raw | p m | 1 | | | DEAD, LIVE
x = Transpose <perm = [0, 1, 3, 2]> (raw)
> NO_LOWERING at x
f = Reshape (raw, pairs)  y = Mul (f, two)  x = Reshape (y, size)
> raw | p m x y f | 2 | | | DEAD, LIVE
u = Unsqueeze (raw, top)  y = Unsqueeze (keep, top)  w = Where (y, u, ninf)
x = Squeeze (w, top)
> raw | p m x w u | 1 | y[False]=-inf | | DEAD, LIVE, ALL
u = Unsqueeze (raw, top)  y = Unsqueeze (bias, top)  w = Add (y, u)  x = Squeeze (w, top)
> raw | p m x w u | 1 | y | | DEAD, LIVE
f = Reshape (raw, merged)  y = Mul (f, two)  z = Reshape (y, size)  x = Add (z, bias)
> raw | p m x z y f | 2 | bias | | DEAD, LIVE
f = Reshape (raw, pairs)  y = Reshape (bias, pairs)  w = Add (f, y)  x = Reshape (w, size)
> raw | p m x w f | 1 | y | | DEAD, LIVE
y = Where (keep, raw, ninf)  x = Mul (y, two)
> NO_FACT at y
d = MatMul (bias, other)  c = Softmax <axis = -1> (d)  x = Add (c, raw)
> raw | p m x | 1 | c | | DEAD, LIVE
x = Add (small, tall)
> NO_LOWERING at x
x = CastLike (raw, bias)
> raw | p m | 1 | | | DEAD, LIVE
h = Cast <to = 10> (raw)  x = CastLike (h, raw)
> NO_LOWERING at x
f = Expand (ninf, size)  x = If (flag) <then_branch = t () => (float[b, 3, s, s] y) { y = Identity
(raw) }, else_branch = e () => (float[b, 3, s, s] z) { z = Identity (f) }>
> NO_LOWERING at x
a1 = Mul (raw, two)  a2 = Mul (a1, two)  a3 = Mul (a2, two)  a4 = Mul (a3, two)  a5 = Mul (a4, two)
a6 = Mul (a5, two)  a7 = Mul (a6, two)  a8 = Mul (a7, two)  a9 = Mul (a8, two)
w = Expand (two, size)  x = Mul (w, a9)
> raw | p m x a9 a8 a7 a6 a5 a4 a3 a2 a1 | 1024 | | | DEAD, LIVE, ALL
a1 = Mul (raw, two)  a2 = Mul (a1, two)  a3 = Mul (a2, two)  a4 = Mul (a3, two)  a5 = Mul (a4, two)
a6 = Mul (a5, two)  a7 = Mul (a6, two)  a8 = Mul (a7, two)  a9 = Mul (a8, two)
x = Add (small, a9)
> raw | p m x a9 a8 a7 a6 a5 a4 a3 a2 a1 | 512 | small | | DEAD, LIVE
y = Where (keep, raw, ninf)  x = Where (flag, y, ninf)
> raw | p m x y | 1 | keep[False]=-inf | | DEAD, flag[] == 0, LIVE, flag[] != 0, ALL
c = Neg (bias)  y = Add (raw, c)  x = Add (y, c)
> raw | p m x y | 1 | c c | bounded | DEAD, LIVE
"""
# all steps from `raw` to the probabilities `p`; a Cast to the same type is gone, and `p` with it
AFTER = """
MASKED  END
> raw | p m | 1 | | | DEAD, LIVE
p = Identity (bias)
> NO_LOWERING at p
p = Softmax <axis = -1> (other)
> NO_FACT at p
p = Softmax <axis = -2> (raw)
> LAYOUT at p
p = Softmax <axis = -1> (raw)
> NO_FACT at p
MASKED  p = LogSoftmax <axis = -1> (m)
> NO_LOWERING at p
MASKED  p = Softmax <axis = -2> (m)
> LAYOUT at p
p = MatMul (raw, other)
> NO_LOWERING at p
MASKED  t = Softmax <axis = -1> (m)  p = Where (live, t, zero)
> raw | p t m | 1 | | no keys to zero | LIVE, DEAD, LIVE
MASKED  d = Not (live)  t = Softmax <axis = -1> (m)  p = Where (d, zero, t)
> raw | p t m | 1 | | no keys to zero | LIVE, DEAD, LIVE
MASKED  t = Softmax <axis = -1> (m)  p = Where (keep, t, zero)
> NO_FACT at p
MASKED  t = Softmax <axis = -1> (m)  p = Where (keep, t, ninf)
> NO_FACT at p
MASKED  t = Softmax <axis = -1> (m)  p = Mul (t, two)
> NO_LOWERING at p
MASKED  t = Softmax <axis = -1> (m)  p = Cast <to = 1> (t)
> NO_LOWERING at p
MASKED  t = Softmax <axis = -1> (m)  h = Cast <to = 10> (t)  p = Cast <to = 1> (h)
> NO_LOWERING at p
MASKED  t = Softmax <axis = -1> (m)  n = IsNaN (t)  p = Where (n, zero, t)
> raw | p n t m | 1 | | nan to zero | DEAD, LIVE
MASKED  t = Softmax <axis = -1> (m)  n = IsNaN (t)  p = Where (n, one, t)
> NO_FACT at p
MASKED  t = Softmax <axis = -1> (m)  u = Unsqueeze (t, top)  p = Squeeze (u, top)
> raw | p u t m | 1 | | | DEAD, LIVE
MASKED  t = Softmax <axis = -1> (m)  p = Transpose <perm = [1, 0, 2, 3]> (t)
> NO_LOWERING at p
MASKED  t = Softmax <axis = -1> (m)  u = Softmax <axis = -1> (t)
p = Where (live, u, zero)
> NO_FACT at u
MASKED  t = Softmax <axis = -1> (m)  d = Softmax <axis = -1> (bias)
p = Where (live, t, d)
> NO_FACT at t
a = Where (live, zero, ninf)  m = Add (raw, a)  END
> raw | p m | 1 | | | DEAD, LIVE
a = Where (live, one, ninf)  m = Add (a, raw)  END
> raw | p m | 1 | a | | DEAD, LIVE
f = Cast <to = 1> (live)  n = Sub (one, f)  a = Mul (n, low)  m = Add (raw, a)  END
> raw | p m | 1 | | no keys to zero | DEAD and ANY, LIVE
MASKED  t = Softmax <axis = -1> (m)  m2 = Where (live, t, ninf)  p = Softmax <axis = -1> (m2)
> NO_LOWERING at t
MASKED  f = Reshape (m, pairs)  t = Softmax <axis = -1> (f)  p = Reshape (t, size)
> LAYOUT at t
MASKED  f = Reshape (m, merged)  t = Softmax <axis = -1> (f)  p = Reshape (t, size)
> raw | p t f m | 1 | | | live[(d0//3%b), 0, 0, d2] == 0, LIVE
f = Reshape (raw, merged)  a = Where (live, zero, ninf)  y = Mul (f, two)
x = Reshape (y, size)  m = Add (x, a)  END
> raw | p m x y f | 2 | | | DEAD, LIVE
"""


def cases(text: str) -> dict[str, str]:
    """Steps, and the end of the walk."""
    ends = [part.partition("\n") for part in text.split("\n> ")]
    bodies = [ends[0][0] + ends[0][2], *(steps for _, _, steps in ends[1:-1])]
    return dict(zip(map(str.strip, bodies), (end for end, _, _ in ends[1:]), strict=True))


@pytest.mark.parametrize(("steps", "end"), cases(STEPS).items())
def test_steps_on_the_scores(steps: str, end: str) -> None:
    assert end_of(graph_of(f"{steps}  m = Where (live, x, ninf)  {END}")) == end


@pytest.mark.parametrize(("steps", "end"), cases(AFTER).items())
def test_steps_on_the_probabilities(steps: str, end: str) -> None:
    assert end_of(graph_of(steps.replace("MASKED", MASKED).replace("END", END))) == end
