package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/printable"
	"github.com/tranche-gpu/tranche/internal/size"
)

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	w := &errWriter{w: out}
	r.printDriver(w)
	r.printGPUs(w)
	r.printClaims(w)
	r.printTurns(w)
	r.printProblems(w)
	return w.err
}

// PrintClaims writes what the report says of claims for people.
func (r *Report) PrintClaims(out io.Writer) error {
	w := &errWriter{w: out}
	r.printClaims(w)
	r.printTurns(w)
	r.printProblems(w)
	return w.err
}

func (r *Report) printDriver(w *errWriter) {
	if r.NVMLError != "" {
		printable.Fprintf(w, "NVML is not available, so what the GPUs are and what they hold is not known: %s\n"+
			"See that nvidia-smi works, name the driver's directory by driver_root in the configuration or --driver-root, and run: "+
			"tranche doctor\n", r.NVMLError)
		return
	}
	printable.Fprintf(w, "Driver %s, CUDA %s\n", r.DriverVersion, r.CUDAVersion)
}

func (r *Report) printGPUs(w *errWriter) {
	w.paragraph()
	if len(r.GPUs) == 0 {
		fmt.Fprintln(w, "No GPUs.")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "GPU\tNAME\tUUID\tMODE\tMEMORY\tUSED\tBUSY\tSLICES TAKEN\tDORMANT\tFREE")
	for _, g := range r.GPUs {
		memory, used, busy, free := "?", "?", "?", "?"
		if g.Error == "" {
			memory, used, free = mebibytes(g.MemoryBytes), mebibytes(g.UsedBytes), strconv.Itoa(g.Slices.Free)
		}
		if g.Slices.SliceBytes == 0 {
			free = "-"
		}
		if g.UtilizationPercent >= 0 {
			busy = fmt.Sprintf("%d%%", g.UtilizationPercent)
		}
		printable.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", g.Index, orUnknown(g.Name), orUnknown(g.UUID), g.Mode,
			memory, used, busy, g.Slices.describeTaken(), g.Slices.Dormant, free)
	}
	_ = t.Flush() // errWriter keeps the error
	for _, g := range r.GPUs {
		if g.Error != "" && r.NVMLError == "" {
			printable.Fprintf(w, "GPU %d: %s\n", g.Index, g.Error)
		}
		if g.Slices.Outside > 0 {
			printable.Fprintf(w, "GPU %d: processes without a claim use the memory of %d slices\n", g.Index, g.Slices.Outside)
		}
		if g.Unhealthy != nil {
			printable.Fprintf(w, "GPU %d is unhealthy since %s: %s\n", g.Index, g.Unhealthy.Since.Format(time.RFC3339), g.Unhealthy.Problem)
		}
	}
}

func (s Slices) describeTaken() string {
	text := strconv.Itoa(s.Taken)
	if s.Total > 0 {
		text = fmt.Sprintf("%d of %d", s.Taken, s.Total)
	}
	if s.SliceBytes == 0 {
		return text
	}
	return text + " (" + size.Format(s.SliceBytes) + " each)"
}

func (r *Report) printClaims(w *errWriter) {
	if r.LedgerError != "" {
		w.paragraph()
		printable.Fprintf(w, "The ledger cannot be read: %s\n", r.LedgerError)
	}
	if len(r.Claims) == 0 {
		if r.LedgerError == "" {
			w.paragraph()
			fmt.Fprintln(w, "No claims.")
		}
		return
	}
	w.paragraph()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CLAIM\tGPU\tMODE\tSLICES\tLIMIT\tENFORCED BY\tUSED\tPEAK\tHOST MEMORY\tREFUSED\tPROCESSES\tSTATE\tOWNER\tWORKLOAD\tCONTAINER")
	for _, c := range r.Claims {
		used, peak, refused, processes := c.describeUsage()
		printable.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.ID, PhysicalGPU(&c.Claim).Index, c.Mode,
			DescribeSlices(c.PhysicalGPU(), c.Slices), describeLimit(&c.Claim), describeEnforcement(&c.Claim), used, peak, describeHostMemory(&c), refused,
			processes, c.describeState(), c.Owner, c.describeWorkload(), DescribeContainer(c.Container))
	}
	_ = t.Flush() // errWriter keeps the error
	for _, c := range r.Claims {
		if c.GPUUnhealthy != nil {
			printable.Fprintf(w, "claim %s: its GPU is unhealthy: %s\n", c.ID, c.GPUUnhealthy.Problem)
		}
		if c.Uncounted != nil {
			printable.Fprintf(w, "claim %s uses %s that it does not count, since %s: %s\n", c.ID, size.Format(c.Uncounted.Bytes),
				c.Uncounted.Since.Format(time.RFC3339), c.Uncounted.Problem)
		}
		if c.UsageError != "" {
			printable.Fprintf(w, "claim %s: %s\n", c.ID, c.UsageError)
		}
		if c.UsageWarning != "" {
			printable.Fprintf(w, "claim %s: %s\n", c.ID, c.UsageWarning)
		}
		if c.State == claim.StateRunning && c.Container != nil && c.Container.Lacks != "" {
			printable.Fprintf(w, "claim %s: container %s: %s\n", c.ID, claim.ShortID(c.Container.ID), c.Container.Lacks)
		}
	}
}

func (r *Report) printProblems(w *errWriter) {
	for _, unknown := range []struct{ what, cause string }{
		{"Which GPUs are unhealthy", r.HealthError},
		{"What the claims have had of the GPUs' time", r.GovernorError},
		{"How the GPUs are shared", r.LayoutError},
	} {
		if unknown.cause != "" {
			w.paragraph()
			printable.Fprintf(w, "%s is not known: %s\n", unknown.what, unknown.cause)
		}
	}
	if len(r.Problems) > 0 {
		w.paragraph()
		fmt.Fprintln(w, "Files in the ledger that are no readable claims:")
	}
	for _, p := range r.Problems {
		printable.Fprintf(w, "  %s: %s\n", p.Path, p.Reason)
	}
}

// describeState is the claim's state, or that what it uses is not counted.
func (c *Claim) describeState() string {
	if c.Uncounted != nil {
		return "uncounted"
	}
	return string(c.State)
}

func (c *Claim) describeWorkload() string {
	if c.Workload == nil {
		return "-"
	}
	return c.Workload.String()
}

// describeUsage says what the claim uses; "-" is what nobody counts.
func (c *Claim) describeUsage() (used, peak, refused, processes string) {
	if u := c.Usage; u != nil {
		used = mebibytes(u.UsedBytes)
		if c.UsageWarning != "" {
			used += " (!)"
		}
		return used, mebibytes(u.PeakBytes), strconv.FormatUint(u.Refused, 10), strconv.Itoa(len(u.Processes))
	}
	if c.UsageError == "" {
		peak = "-"
		if w := c.Workload; w != nil && w.PeakBytes > 0 {
			peak = mebibytes(w.PeakBytes) // of the last container
		}
		return "-", peak, "-", "-"
	}
	return "?", "?", "?", "?"
}

func describeLimit(c *claim.Claim) string {
	switch {
	case !c.Limited():
		return "none"
	case c.LimitBytes == 0:
		return "?" // a run whose region cannot be read
	}
	return mebibytes(c.LimitBytes)
}

func describeEnforcement(c *claim.Claim) string {
	if e := c.Enforced(); e != "" {
		return string(e)
	}
	return "-"
}

// describeHostMemory says how much of what the claim may allocate beyond its limit is in use.
func describeHostMemory(c *Claim) string {
	switch {
	case c.Usage == nil && c.GPUHostMemoryBytes > 0:
		return "? of " + mebibytes(c.GPUHostMemoryBytes)
	case c.Usage == nil || c.Usage.Spill == nil:
		return "-"
	}
	return fmt.Sprintf("%d of %s", c.Usage.Spill.UsedBytes>>20, mebibytes(c.Usage.Spill.LimitBytes))
}

func mebibytes(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

func orUnknown(text string) string {
	if text == "" {
		return "?"
	}
	return text
}

// DescribeContainer names a container and what runs it; "-" for none.
func DescribeContainer(c *claim.Container) string {
	if c == nil {
		return "-"
	}
	return fmt.Sprintf("%s (%s)", claim.ShortID(c.ID), c.Runtime)
}

// DescribeSlices shortens the names of slices to their numbers on the GPU, and runs of numbers to their ends.
func DescribeSlices(uuid string, names []string) string {
	if len(names) == 0 {
		return "-"
	}
	var numbers []int
	for _, name := range names {
		n, err := strconv.Atoi(strings.TrimPrefix(name, uuid+"/slice-"))
		if err != nil {
			return strings.Join(names, ",")
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var runs []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		run := strconv.Itoa(numbers[i])
		if last > i {
			run += "-" + strconv.Itoa(numbers[last])
		}
		runs = append(runs, run)
		i = last + 1
	}
	return strings.Join(runs, ",")
}
