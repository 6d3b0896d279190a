package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// result is one line of bench.tsv.
type result struct {
	benchmark, variant string
	threads            int
	median, p99        float64
	unit               string
}

// key is what a result has in common with its other variants.
func (r result) key() string { return r.benchmark + " " + strconv.Itoa(r.threads) }

// medianOf returns the median and the 99th percentile of samples, which it sorts.
func medianOf(samples []float64) (median, p99 float64) {
	slices.Sort(samples)
	return samples[len(samples)/2], samples[(len(samples)*99)/100]
}

// show prints the results as a table, each variant beside what it is compared with.
func show(out io.Writer, results []result) {
	fmt.Fprintln(out, "SIMULATED GPU; medians. The difference is to the variant \"bare\" of the same run, the part of its")
	fmt.Fprintln(out, "variant \"docker\".")
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "benchmark\tvariant\tthreads\tmedian\tp99\tunit\tcompared\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%.1f\t%.1f\t%s\t%s\t\n",
			r.benchmark, r.variant, r.threads, r.median, r.p99, r.unit, compared(r, results))
	}
	_ = tw.Flush()
}

// compared says how a result compares with doing without Tranche: with the variant "bare" by the difference, for Tranche
// adds to it; with "docker", in whose place it stands, by the part.
func compared(r result, results []result) string {
	for _, other := range results {
		switch {
		case other.key() != r.key() || other.variant == r.variant:
		case other.variant == "bare":
			return fmt.Sprintf("%+.1f", r.median-other.median)
		case other.variant == "docker" && other.median > 0:
			return fmt.Sprintf("%.0f%% of docker's", 100*r.median/other.median)
		}
	}
	return ""
}

// write writes the results as tab-separated values.
func write(path string, results []result) error {
	var b strings.Builder
	b.WriteString("benchmark\tvariant\tthreads\tmedian\tp99\tunit\n")
	for _, r := range results {
		fmt.Fprintf(&b, "%s\t%s\t%d\t%.1f\t%.1f\t%s\n", r.benchmark, r.variant, r.threads, r.median, r.p99, r.unit)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
