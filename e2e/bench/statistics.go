package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/plugins/device/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

const statsInterval = time.Second

// statsClaims are with how many claims statistics are measured.
var statsClaims = []int{0, 100}

// statistics measures the processor time that the plugin takes for one message of statistics. At an interval of a second,
// ten milliseconds are one percent of a core.
func (n *deviceNode) statistics(ctx context.Context, counts deviceCounts) ([]result, error) {
	var results []result
	for _, claims := range statsClaims {
		fmt.Printf("==> statistics with %d claims, %d times\n", claims, counts.ticks)
		cpu, err := n.statisticsOf(ctx, claims, counts.ticks)
		if err != nil {
			return nil, fmt.Errorf("statistics with %d claims: %w", claims, err)
		}
		r := result{benchmark: "stats-cpu", variant: "claims-" + strconv.Itoa(claims), threads: 1, unit: "ms"}
		r.median, r.p99 = medianOf(cpu)
		results = append(results, r)
	}
	return results, nil
}

func (n *deviceNode) statisticsOf(ctx context.Context, claims, ticks int) ([]float64, error) {
	p, _, err := n.startFilled(ctx, claims)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	if _, _, err := p.firstMessage(ctx); err != nil { // the statistics are of GPUs that it has seen
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, devicePatience)
	defer cancel()
	stream, err := p.messages.Stats(ctx, &proto.StatsRequest{CollectionInterval: durationpb.New(statsInterval)})
	if err != nil {
		return nil, err
	}
	next := func() error {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		return checkStatistics(message, claims)
	}
	if err := next(); err != nil {
		return nil, err
	}
	var cpu []float64
	for range ticks {
		used, err := p.cpuOf(next)
		if err != nil {
			return nil, err
		}
		cpu = append(cpu, milliseconds(used))
	}
	return cpu, nil
}

// checkStatistics says whether the statistics are of all slices, and of as many claims as there are.
func checkStatistics(message *proto.StatsResponse, claims int) error {
	instances, claimed := 0, 0
	for _, group := range message.Groups {
		for _, stats := range group.InstanceStats {
			instances++
			if stats.Stats.GetAttributes()["Claim"] != nil {
				claimed++
			}
		}
	}
	if instances != deviceGPUs*deviceSlices || claimed != claims {
		return fmt.Errorf("the statistics are of %d slices, %d of them of claims; they should be of %d and %d",
			instances, claimed, deviceGPUs*deviceSlices, claims)
	}
	return nil
}
