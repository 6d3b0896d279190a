package metrics

import "github.com/prometheus/client_golang/prometheus"

// Metric is one of the metrics, which docs/metrics.md lists.
type Metric struct {
	Name, Help string
	Labels     []string
	kind       prometheus.ValueType
	desc       *prometheus.Desc
}

// Type returns the metric's type as Prometheus names it.
func (m *Metric) Type() string {
	if m.kind == prometheus.CounterValue {
		return "counter"
	}
	return "gauge"
}

var all []*Metric

// All returns all metrics.
func All() []*Metric { return all }

func gauge(name, help string, labels ...string) *Metric {
	return define(prometheus.GaugeValue, name, help, labels)
}

func counter(name, help string, labels ...string) *Metric {
	return define(prometheus.CounterValue, name, help, labels)
}

func define(kind prometheus.ValueType, name, help string, labels []string) *Metric {
	name = "tranche_" + name
	m := &Metric{Name: name, Help: help, Labels: labels, kind: kind, desc: prometheus.NewDesc(name, help, labels, nil)}
	all = append(all, m)
	return m
}

// Of the node.
var (
	agentInfo      = gauge("agent_info", "Always 1; the agent's version.", "version")
	driverInfo     = gauge("driver_info", "Always 1; the versions of the GPU driver and of CUDA.", "driver_version", "cuda_version")
	sourceUp       = gauge("source_up", "1 if the agent can read this source, else 0.", "source")
	ledgerProblems = gauge("ledger_problem_files", "Files in the ledger that are not readable claims.")
	idleActions    = counter("idle_policy_actions_total",
		"What the idle policy did since the agent started: observed, warned, stopped or failed.", "namespace", "action")
)

// Of GPUs.
var (
	gpuInfo              = ofGPU("info", "Always 1; the GPU's product name and how it is shared.", "name", "mode")
	gpuUp                = ofGPU("up", "1 if the GPU answers, else 0.")
	gpuHealthy           = ofGPU("healthy", "1 if the GPU answers and the device plugin found nothing wrong with it, else 0.")
	gpuMemory            = ofGPU("memory_bytes", "Memory of the GPU.")
	gpuMemoryUsed        = ofGPU("memory_used_bytes", "Memory that all processes and the driver use.")
	gpuMemoryDriver      = ofGPU("memory_driver_bytes", "Memory that the driver reserves for itself.")
	gpuMemoryReserved    = ofGPU("memory_reserved_bytes", "Memory that claims reserve; dormant claims reserve none.")
	gpuMemoryOutside     = ofGPU("memory_outside_bytes", "Memory that processes without a claim use.")
	gpuSliceSize         = ofGPU("slice_size_bytes", "Memory of one slice.")
	gpuSlices            = ofGPU("slices", "Slices by state: running, reserved, dormant, outside, unhealthy or free.", "state")
	gpuUtilization       = ofGPU("utilization_ratio", "Share of time in which a kernel ran, 0 to 1.")
	gpuMemoryUtilization = ofGPU("memory_utilization_ratio", "Share of time in which the memory was read or written, 0 to 1.")
	gpuEncoder           = ofGPU("encoder_utilization_ratio", "Share of time in which the video encoder worked, 0 to 1.")
	gpuDecoder           = ofGPU("decoder_utilization_ratio", "Share of time in which the video decoder worked, 0 to 1.")
	gpuTemperature       = ofGPU("temperature_celsius", "Temperature of the GPU.")
	gpuPower             = ofGPU("power_watts", "Power that the GPU and its memory draw.")
	gpuPowerLimit        = ofGPU("power_limit_watts", "The most power that the GPU may draw.")
	gpuEnergy            = counter("gpu_energy_joules_total", "Energy drawn since the driver was loaded.", "gpu", "uuid")
	gpuXids              = counter("gpu_xid_errors_total", "Xid errors since the agent started, by their number.", "gpu", "uuid", "xid")
)

func ofGPU(name, help string, more ...string) *Metric {
	return gauge("gpu_"+name, help, append([]string{"gpu", "uuid"}, more...)...)
}

// Of claims.
var (
	claimInfo = ofClaim("info", "Always 1; what the claim is for, and on which GPU.", "gpu", "uuid", "mode", "enforcement", "owner",
		"namespace", "nomad_job", "group", "task", "alloc_id", "container", "verified")
	claimState       = ofClaim("state", "Always 1; the claim's state: reserved, running, dormant or ended.", "state")
	claimCreated     = ofClaim("created_timestamp_seconds", "When the claim was made.")
	claimLimit       = ofClaim("memory_limit_bytes", "The claim's limit; absent of dormant claims, which reserve nothing.")
	claimSlices      = ofClaim("slices", "Slices of the claim; absent of dormant claims.")
	claimUsed        = ofClaim("memory_used_bytes", "Memory that the claim's processes count.")
	claimPeak        = ofClaim("memory_peak_bytes", "The most memory that they counted since the container started; of a dormant claim, until it ended.")
	claimHostLimit   = ofClaim("host_memory_limit_bytes", "The claim's host memory limit.")
	claimHostUsed    = ofClaim("host_memory_used_bytes", "Managed memory of the claim that is on the host.")
	claimProcesses   = ofClaim("processes", "Processes of the claim that use the GPU.")
	claimUncounted   = ofClaim("memory_uncounted_bytes", "Memory of the claim's container that is not counted; absent if none is seen.")
	claimUtilization = ofClaim("utilization_ratio", "How busy the claim's processes had the GPU's multiprocessors, 0 to 1.")
	claimActivity    = ofClaim("activity", "Always 1; of a running claim: active, idle_with_memory, idle_without_memory or unknown.", "activity")
	claimIdle        = ofClaim("idle_seconds", "How long a running claim has been idle; 0 if it is active.")
	claimLastActive  = ofClaim("last_activity_timestamp_seconds", "When the claim was last seen to be active.")
	claimIdleTooLong = ofClaim("idle_too_long", "Always 1; what the idle policy did about a claim: observed, warned, held or stopped.", "state")
	claimIdleStop    = ofClaim("idle_stop_timestamp_seconds", "When the idle policy stops the claim's group unless it uses the GPU.")
	claimRefused     = counter("claim_refused_allocations_total", "Allocations that were refused at the limit.", "claim")
)

// Of claims that compute in turns.
var (
	claimShare     = ofClaim("compute_share_ratio", "The claim's share of the GPU's time while others want it too, 0 to 1.")
	claimMax       = ofClaim("compute_max_ratio", "The most of the GPU's time that the claim gets, 0 to 1.")
	claimHad       = counter("claim_compute_seconds_total", "GPU time that the claim was charged; none while it was alone.", "claim")
	claimWaited    = counter("claim_compute_waiting_seconds_total", "Time for which the claim wanted the GPU and had no turn.", "claim")
	claimOverruns  = counter("claim_compute_overruns_total", "Turns that had not ended by their deadline.", "claim")
	claimNotJoined = ofClaim("compute_processes_not_joined", "Processes of the claim that use the GPU outside of its turns.")
)

// Of accounting.
var (
	usageAccounted      = gauge("usage_accounted_timestamp_seconds", "Up to when usage is accounted.")
	claimReserved       = counter("claim_reserved_seconds_total", "Time for which the claim was reserved.", "claim")
	claimReservedMemory = counter("claim_reserved_memory_byte_seconds_total", "Reserved memory times that time.", "claim")
	claimReservedGPU    = counter("claim_reserved_gpu_seconds_total", "Reserved part of a GPU times that time.", "claim")
)

func ofClaim(name, help string, more ...string) *Metric {
	return gauge("claim_"+name, help, append([]string{"claim"}, more...)...)
}
