// Package metrics exports a monitor's snapshots of a node's GPUs and claims to Prometheus. Unknown values are left out, never
// 0, and no metric has a series for each slice.
package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/printable"
)

// Collector is a prometheus.Collector that takes a snapshot for each scrape.
type Collector struct {
	snapshot func(context.Context) *monitor.Snapshot
	version  string
}

// New returns a collector of a monitor's snapshots. The version is the program's.
func New(snapshot func(context.Context) *monitor.Snapshot, version string) *Collector {
	return &Collector{snapshot: snapshot, version: version}
}

// scrapeTimeout is how long a scrape waits for a snapshot.
const scrapeTimeout = 5 * time.Second

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range All() {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	s := c.snapshot(ctx)
	w := writer{out}
	w.add(agentInfo, 1, c.version)
	for _, source := range monitor.Sources {
		_, failed := s.Errors[source]
		w.add(sourceUp, boolean(!failed), string(source))
	}
	w.add(ledgerProblems, float64(len(s.Problems)))
	for of, count := range s.PolicyActions {
		w.add(idleActions, float64(count), of.Namespace, of.Action)
	}
	if s.DriverVersion != "" {
		w.add(driverInfo, 1, s.DriverVersion, s.CUDAVersion)
	}
	for i := range s.GPUs {
		if s.GPUs[i].UUID != "" { // one that has never answered has no name to count by
			w.gpu(s, &s.GPUs[i])
		}
	}
	for _, c := range s.Claims {
		w.claim(c)
	}
	if s.Usage != nil {
		w.usage(s)
	}
}

// writer writes the values of metrics.
type writer struct{ out chan<- prometheus.Metric }

func (w writer) add(m *Metric, value float64, labels ...string) {
	for i := range labels {
		labels[i] = printable.Text(labels[i])
	}
	w.out <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

// known writes a value unless it is unknown.
func (w writer) known(m *Metric, value *uint64, labels ...string) {
	if value != nil {
		w.add(m, float64(*value), labels...)
	}
}

// scaled writes a number of NVML's in the metric's unit unless it is unknown.
func (w writer) scaled(m *Metric, value *int64, scale float64, labels ...string) {
	if value != nil {
		w.add(m, float64(*value)*scale, labels...)
	}
}

func (w writer) gpu(s *monitor.Snapshot, g *monitor.GPU) {
	gpu := []string{strconv.Itoa(g.Index), g.UUID}
	with := func(more ...string) []string { return append([]string{gpu[0], gpu[1]}, more...) }
	w.add(gpuInfo, 1, with(g.Name, string(g.Mode))...)
	w.add(gpuUp, boolean(g.Error == ""), with()...)
	w.add(gpuHealthy, boolean(g.Error == "" && g.Unhealthy == nil), with()...)
	w.known(gpuMemory, g.MemoryBytes, with()...)
	w.known(gpuMemoryUsed, g.UsedBytes, with()...)
	w.known(gpuMemoryDriver, g.DriverBytes, with()...)
	w.known(gpuMemoryOutside, g.OutsideBytes, with()...)
	if _, failed := s.Errors[monitor.SourceLedger]; !failed {
		w.add(gpuMemoryReserved, float64(s.ReservedBytes(g.UUID)), with()...)
	}
	w.scaled(gpuUtilization, g.GPUPercent, 0.01, with()...)
	w.scaled(gpuMemoryUtilization, g.MemoryPercent, 0.01, with()...)
	w.scaled(gpuEncoder, g.EncoderPercent, 0.01, with()...)
	w.scaled(gpuDecoder, g.DecoderPercent, 0.01, with()...)
	w.scaled(gpuTemperature, g.TemperatureCelsius, 1, with()...)
	w.scaled(gpuPower, g.PowerMilliwatts, 0.001, with()...)
	w.scaled(gpuPowerLimit, g.PowerLimitMilliwatts, 0.001, with()...)
	w.scaled(gpuEnergy, g.EnergyMillijoules, 0.001, with()...)
	for xid, count := range g.Xids {
		w.add(gpuXids, float64(count), with(strconv.FormatUint(xid, 10))...)
	}
	if g.Slices != nil {
		w.slices(s, g, with)
	}
}

func (w writer) slices(s *monitor.Snapshot, g *monitor.GPU, with func(...string) []string) {
	w.add(gpuSliceSize, float64(g.Slices.SliceBytes), with()...)
	if _, failed := s.Errors[monitor.SourceLedger]; failed {
		return
	}
	counts := map[string]int{"running": g.Slices.Running, "reserved": g.Slices.Reserved, "dormant": g.Slices.Dormant}
	if g.Slices.Total != nil {
		counts["free"], counts["unhealthy"] = g.Slices.Free, g.Slices.Unhealthy
		if g.OutsideBytes != nil {
			counts["outside"] = g.Slices.Outside
		}
	}
	for state, count := range counts {
		w.add(gpuSlices, float64(count), with(state)...)
	}
}

func (w writer) claim(c *monitor.Claim) {
	of := c.Workload
	w.add(claimInfo, 1, c.ID, gpuIndex(c), c.PhysicalGPU(), string(c.Mode), string(c.Enforced()), c.Owner, of.Namespace, of.Job, of.Group, of.Task,
		of.Allocation, of.ContainerName, strconv.FormatBool(of.Verified))
	w.add(claimState, 1, c.ID, string(c.State))
	w.add(claimCreated, float64(c.Created.Unix()), c.ID)
	w.known(claimPeak, c.PeakBytes(), c.ID)
	if !c.Holds() {
		return // queries sum up the rest
	}
	if c.Limited() {
		w.add(claimLimit, float64(c.LimitBytes), c.ID)
	}
	if c.Sliced() {
		w.add(claimSlices, float64(len(c.Slices)), c.ID)
	}
	if u := c.Usage; u != nil {
		w.add(claimUsed, float64(u.UsedBytes), c.ID)
		w.add(claimRefused, float64(u.Refused), c.ID)
		w.add(claimProcesses, float64(len(u.Processes)), c.ID)
		if u.Spill != nil {
			w.add(claimHostLimit, float64(u.Spill.LimitBytes), c.ID)
			w.add(claimHostUsed, float64(u.Spill.UsedBytes), c.ID)
		}
	}
	if c.Uncounted != nil {
		w.add(claimUncounted, float64(c.Uncounted.Bytes), c.ID)
	}
	if c.Utilization != nil {
		w.add(claimUtilization, *c.Utilization, c.ID)
	}
	w.idleness(c)
	w.turns(c)
}

func (w writer) turns(c *monitor.Claim) {
	if c.Governed() {
		w.add(claimShare, float64(c.Compute.Share)/claim.WholeCompute, c.ID)
		w.add(claimMax, float64(c.Compute.Max)/claim.WholeCompute, c.ID)
	}
	if had := c.Turns; had != nil {
		w.add(claimHad, had.GPUSeconds, c.ID)
		w.add(claimWaited, had.WaitingSeconds, c.ID)
		w.add(claimOverruns, float64(had.Overruns), c.ID)
		w.add(claimNotJoined, float64(len(had.NotJoined)), c.ID)
	}
}

func (w writer) idleness(c *monitor.Claim) {
	if c.Idleness.Activity != "" {
		w.add(claimActivity, 1, c.ID, string(c.Idleness.Activity))
	}
	if c.Idleness.Idle != nil {
		w.add(claimIdle, c.Idleness.Idle.Seconds(), c.ID)
	}
	if !c.Idleness.LastActive.IsZero() {
		w.add(claimLastActive, float64(c.Idleness.LastActive.Unix()), c.ID)
	}
	if is := c.IdleTooLong; is != nil {
		w.add(claimIdleTooLong, 1, c.ID, string(is.State))
		if is.StopAt != nil {
			w.add(claimIdleStop, float64(is.StopAt.Unix()), c.ID)
		}
	}
}

func (w writer) usage(s *monitor.Snapshot) {
	w.add(usageAccounted, float64(s.Usage.Seen.UnixMilli())/1000)
	for _, c := range s.Claims {
		total, ok := s.Usage.Claims[c.ID]
		if !ok {
			continue // made since the last collection
		}
		w.add(claimReserved, float64(total.Millis)/1000, c.ID)
		if total.GiBMillis > 0 || total.Millis == 0 {
			w.add(claimReservedMemory, total.GiBMillis/1000*(1<<30), c.ID)
		}
		if total.GPUMillis > 0 || total.Millis == 0 {
			w.add(claimReservedGPU, total.GPUMillis/1000, c.ID)
		}
	}
}

func gpuIndex(c *monitor.Claim) string {
	if c.GPUIndex < 0 {
		return ""
	}
	return strconv.Itoa(c.GPUIndex)
}

func boolean(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
