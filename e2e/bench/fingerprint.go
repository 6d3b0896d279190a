package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/device/proto"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// fingerprintWays are the nodes whose fingerprints are compared: all GPUs cut into slices, and all of them whole.
var fingerprintWays = []struct {
	variant, mode string
	// groups and devices are what the message has to hold.
	groups, devices int
}{
	{"exclusive-8", "exclusive", 1, deviceGPUs},
	{"slice-8x141", "slice", deviceGPUs, deviceGPUs * deviceSlices},
}

const (
	// quickPeriod is the shortest period in which the plugin looks at the GPUs. What a look costs does not depend on it.
	quickPeriod = 100 * time.Millisecond
	// windowPeriods is over how many periods the processor time of one is averaged: what it takes by itself is less than
	// what the Go runtime does now and then.
	windowPeriods = 10
	// devicePatience is how long the plugin may take for what it does in seconds.
	devicePatience = 10 * time.Minute
)

// fingerprints measures the message that tells Nomad of the GPUs, and what it takes to make it.
func (n *deviceNode) fingerprints(ctx context.Context, counts deviceCounts) ([]result, error) {
	var results []result
	for _, way := range fingerprintWays {
		fmt.Printf("==> fingerprint of the variant %s\n", way.variant)
		add := func(benchmark, unit string, samples []float64) {
			r := result{benchmark: benchmark, variant: way.variant, threads: 1, unit: unit}
			r.median, r.p99 = medianOf(samples)
			results = append(results, r)
		}
		size, wall, cpu, err := n.firstMessages(ctx, way.mode, way.groups, way.devices, counts.fingerprints)
		if err != nil {
			return nil, fmt.Errorf("fingerprint of the variant %s: %w", way.variant, err)
		}
		add("fingerprint-message", "B", []float64{float64(size)})
		add("fingerprint-first", "ms", wall)
		add("fingerprint-first-cpu", "ms", cpu)
		quiet, updates, err := n.periods(ctx, way.mode, counts.fingerprints)
		if err != nil {
			return nil, fmt.Errorf("periods of the variant %s: %w", way.variant, err)
		}
		add("fingerprint-quiet-cpu", "ms", quiet)
		add("fingerprint-update-cpu", "ms", updates)
	}
	return results, nil
}

// firstMessages asks for fingerprints anew, and measures the first message of each: the plugin sweeps the ledger, looks at
// the GPUs, and writes and sends what it finds. It returns the message's size in bytes, and in milliseconds the time from the
// call to the message and the plugin's processor time.
func (n *deviceNode) firstMessages(ctx context.Context, mode string, groups, devices, count int) (size int, wall, cpu []float64, err error) {
	p, err := n.start(map[string]any{"mode": mode})
	if err != nil {
		return 0, nil, nil, err
	}
	defer p.stop()
	for i := range count + 1 {
		var took time.Duration
		used, err := p.cpuOf(func() error {
			message, elapsed, err := p.firstMessage(ctx)
			if err != nil {
				return err
			}
			size, took = protobuf.Size(protoadapt.MessageV2Of(message)), elapsed
			return checkMessage(message, groups, devices)
		})
		if err != nil {
			return 0, nil, nil, err
		}
		if i > 0 { // the first of all loads NVML
			wall, cpu = append(wall, milliseconds(took)), append(cpu, milliseconds(used))
		}
	}
	return size, wall, cpu, nil
}

// firstMessage asks for a fingerprint, and ends it when the first message is there.
func (p *devicePlugin) firstMessage(ctx context.Context) (*proto.FingerprintResponse, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, devicePatience)
	defer cancel()
	began := time.Now()
	stream, err := p.messages.Fingerprint(ctx, &proto.FingerprintRequest{})
	if err != nil {
		return nil, 0, err
	}
	message, err := stream.Recv()
	return message, time.Since(began), err
}

// checkMessage says whether a message tells of as many devices as it should, all of them healthy.
func checkMessage(message *proto.FingerprintResponse, groups, devices int) error {
	found := 0
	for _, group := range message.DeviceGroup {
		for _, device := range group.Devices {
			found++
			if !device.Healthy {
				return fmt.Errorf("the device %s is unhealthy: %s", device.ID, device.HealthDescription)
			}
		}
	}
	if len(message.DeviceGroup) != groups || found != devices {
		return fmt.Errorf("the fingerprint has %d groups with %d devices, and %d with %d were to be measured",
			len(message.DeviceGroup), found, groups, devices)
	}
	return nil
}

// periods measures the plugin's processor time in milliseconds: of a period in which nothing changes, and of one at whose
// end a GPU has been lost or has come back, so that a message is made, compared and sent.
func (n *deviceNode) periods(ctx context.Context, mode string, count int) (quiet, updates []float64, err error) {
	p, err := n.start(map[string]any{"mode": mode, "fingerprint_period": quickPeriod.String()})
	if err != nil {
		return nil, nil, err
	}
	defer p.stop()
	ctx, cancel := context.WithTimeout(ctx, devicePatience)
	defer cancel()
	stream, err := p.messages.Fingerprint(ctx, &proto.FingerprintRequest{})
	if err != nil {
		return nil, nil, err
	}
	if _, err := stream.Recv(); err != nil {
		return nil, nil, err
	}
	for range (count + windowPeriods - 1) / windowPeriods {
		used, elapsed, err := p.quietWindow(ctx)
		if err != nil {
			return nil, nil, err
		}
		quiet = append(quiet, milliseconds(used)*float64(quickPeriod)/float64(elapsed))
	}
	for i := range count + count%2 {
		messages := 0
		used, err := p.cpuOf(func() (err error) {
			messages, err = n.loseOrFind(ctx, stream, i%2 == 0)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		updates = append(updates, milliseconds(used)/float64(messages))
	}
	return quiet, updates, nil
}

// quietWindow lets some periods pass.
func (p *devicePlugin) quietWindow(ctx context.Context) (used, elapsed time.Duration, err error) {
	began := time.Now()
	used, err = p.cpuOf(func() error {
		select {
		case <-time.After(windowPeriods * quickPeriod):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return used, time.Since(began), err
}

// loseOrFind takes a GPU off the bus or puts it back, and waits for the message that says so. It returns how many messages
// there were: where something else about the GPU changes, too, that is told of before.
func (n *deviceNode) loseOrFind(ctx context.Context, stream proto.DevicePlugin_FingerprintClient, lose bool) (messages int, err error) {
	to := map[bool]string{true: "on", false: "off"}[lose]
	if _, err := n.sim.Run(ctx, "fault", "lost", "1", to); err != nil {
		return 0, err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return messages, fmt.Errorf("wait for the message after GPU 1 was lost (%s): %w", to, err)
		}
		messages++
		if allHealthy(message) != lose {
			return messages, nil
		}
	}
}

func allHealthy(message *proto.FingerprintResponse) bool {
	for _, group := range message.DeviceGroup {
		for _, device := range group.Devices {
			if !device.Healthy {
				return false
			}
		}
	}
	return true
}
