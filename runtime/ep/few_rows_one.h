// One row of x times a matrix, where nothing is used twice: all that counts is how memory is read.
// Few streams at a time, line after line, and each asked for ahead. Included by few_rows.cc as
// few_rows_tiles.h is.

constexpr int kOfLine = 16 / kLanes;  // vectors of a line of the caches

// The lanes whose sums are products of x and kCount rows that lie one after the other; n is a
// multiple of kLanes.
template <int kCount, bool kFactor>
PITC_TARGET void AddOne(const float* x, const float* s, const float* factor, int64_t k, int64_t n,
                        int64_t ahead, float* lanes) {
  Vector sum[kCount][kOfLine];
  for (int i = 0; i < kCount * kOfLine; ++i) sum[i / kOfLine][i % kOfLine] = Vector{};
  const auto add = [&](int64_t j, int l, bool ask) PITC_TARGET {
    const Vector v = *reinterpret_cast<const InMemory*>(x + j);
    for (int i = 0; i < kCount; ++i) {
      const int64_t at = i * k + j;
      Vector w = *reinterpret_cast<const InMemory*>(s + at);
      if (ask) Ask(s + at, ahead);
      if (kFactor) {
        w *= *reinterpret_cast<const InMemory*>(factor + at);
        if (ask) Ask(factor + at, ahead);
      }
      sum[i][l] = PITC_MULTIPLY_ADD(v, w, sum[i][l]);
    }
  };
  int64_t j = 0;
  for (; j + kOfLine * kLanes <= n; j += kOfLine * kLanes) {
    for (int l = 0; l < kOfLine; ++l) add(j + l * kLanes, l, l == 0);
  }
  for (; j < n; j += kLanes) add(j, 0, false);
  for (int i = 0; i < kCount; ++i) {
    for (int l = 1; l < kOfLine; ++l) sum[i][0] += sum[i][l];
    *reinterpret_cast<InMemory*>(lanes + i * kLanes) = sum[i][0];
  }
}

// Rows of A that lie behind each other: two at a time, or one and its factor.
PITC_TARGET void MultiplyRowsByOne(const float* x, const StoredMatrix& a, float* sums,
                                   int64_t step) {
  const int64_t k = a.k, whole = k / kLanes * kLanes, rest = k - whole;
  // What is as far ahead as the row beside has been read already.
  const int64_t pair = 2 * k, pairs = kAhead / pair * pair;
  const int64_t ahead = pairs > 0 ? pairs : a.factor ? kAhead : kAhead / 3;
  float lanes[4 * kLanes] = {}, x_last[kLanes], s_last[kLanes];
  if (rest) CopyLast(x, nullptr, k, rest, x_last);
  for (int64_t i = 0; i < a.count; i += 4) {
    const int64_t here = std::min<int64_t>(4, a.count - i);
    for (int64_t j = 0, n; j < here; j += n) {
      const float* const s = a.Row(a.a, i + j);
      const float* const factor = a.factor ? a.Row(a.factor, i + j) : nullptr;
      float* const to = lanes + j * kLanes;
      n = factor || a.rows ? 1 : std::min<int64_t>(2, here - j);
      if (factor) {
        AddOne<1, true>(x, s, factor, k, whole, ahead, to);
      } else if (n == 1) {
        AddOne<1, false>(x, s, nullptr, k, whole, ahead, to);
      } else {
        AddOne<2, false>(x, s, nullptr, k, whole, ahead, to);
      }
      for (int64_t l = 0; l < n && rest; ++l) {
        CopyLast(s + l * k, factor, k, rest, s_last);
        auto& sum = *reinterpret_cast<InMemory*>(to + l * kLanes);
        sum = PITC_MULTIPLY_ADD(*reinterpret_cast<const InMemory*>(s_last),
                                *reinterpret_cast<const InMemory*>(x_last), sum);
      }
    }
    const Four found = SumLanes(lanes);
    for (int64_t j = 0; j < here; ++j) sums[(i + j) * step] = found[j];
  }
}

// total[0..n) += x[j] * columns j of A, for kCount j; n is a multiple of kLanes.
template <int kCount, bool kFactor>
PITC_TARGET void AddColumns(const float* x, const float* s, const float* factor, int64_t columns,
                            int64_t n, int64_t ahead, float* total) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Vector sum = *reinterpret_cast<const InMemory*>(total + i);
    for (int j = 0; j < kCount; ++j) {
      const int64_t at = j * columns + i;
      Vector w = *reinterpret_cast<const InMemory*>(s + at);
      Ask(s + at, ahead);
      if (kFactor) {
        w *= *reinterpret_cast<const InMemory*>(factor + at);
        Ask(factor + at, ahead);
      }
      sum = PITC_MULTIPLY_ADD(w, All(x[j]), sum);
    }
    *reinterpret_cast<InMemory*>(total + i) = sum;
  }
}

// Columns of A that lie behind each other: two at a time, or one and its factor, in ascending k.
PITC_TARGET void MultiplyColumnsByOne(const float* x, const StoredMatrix& a, float* sums,
                                      int64_t step) {
  for (int64_t i = 0; i < a.count; i += kColumns) {
    const int64_t n = std::min(kColumns, a.count - i), whole = n / kLanes * kLanes;
    const int64_t ahead = (a.factor ? 2 : 4) * a.columns;
    float total[kColumns] = {};
    for (int64_t k = 0, ks; k < a.k; k += ks) {
      const int64_t at = k * a.columns + i;
      const float *const s = a.a + at, *const factor = a.factor ? a.factor + at : nullptr;
      ks = factor ? 1 : std::min<int64_t>(2, a.k - k);
      if (factor) {
        AddColumns<1, true>(x + k, s, factor, a.columns, whole, ahead, total);
      } else if (ks == 1) {
        AddColumns<1, false>(x + k, s, nullptr, a.columns, whole, ahead, total);
      } else {
        AddColumns<2, false>(x + k, s, nullptr, a.columns, whole, ahead, total);
      }
      for (int64_t c = whole; c < n; ++c) {
        for (int64_t j = 0; j < ks; ++j) {
          const int64_t here = j * a.columns + c;
          const float w = factor ? s[here] * factor[here] : s[here];
          // As the lanes of a vector do.
          total[c] = kLanes > 4 ? __builtin_fmaf(w, x[k + j], total[c]) : w * x[k + j] + total[c];
        }
      }
    }
    for (int64_t c = 0; c < n; ++c) sums[(i + c) * step] = total[c];
  }
}
