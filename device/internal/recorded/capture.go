package recorded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
)

// Capture records a configured plugin: its first fingerprint and statistics, and the environment that it returns for each device and
// for all devices of each group.
func Capture(ctx context.Context, plugin ndevice.DevicePlugin) (*Recording, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	info, err := plugin.PluginInfo()
	if err != nil {
		return nil, fmt.Errorf("query the plugin's name: %w", err)
	}
	r := &Recording{Plugin: info.Name, Version: info.PluginVersion}
	stream, err := plugin.Fingerprint(ctx)
	if err != nil {
		return nil, fmt.Errorf("query the plugin's fingerprint: %w", err)
	}
	fingerprint, err := first(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("query the plugin's fingerprint: %w", err)
	}
	if fingerprint.Error != nil {
		return nil, fmt.Errorf("the plugin's fingerprint is an error: %w", fingerprint.Error)
	}
	for _, g := range fingerprint.Devices {
		r.Groups = append(r.Groups, groupOf(g))
	}
	slices.SortFunc(r.Groups, func(a, b Group) int { return cmp.Compare(a.Type+a.Name, b.Type+b.Name) })
	if err := r.captureStatistics(ctx, plugin); err != nil {
		return nil, err
	}
	return r, r.captureReservations(plugin)
}

func (r *Recording) captureStatistics(ctx context.Context, plugin ndevice.DevicePlugin) error {
	stream, err := plugin.Stats(ctx, time.Minute)
	if err != nil {
		return fmt.Errorf("query the plugin's statistics: %w", err)
	}
	response, err := first(ctx, stream)
	if err != nil {
		return fmt.Errorf("query the plugin's statistics: %w", err)
	}
	if response.Error != nil {
		return fmt.Errorf("the plugin's statistics are an error: %w", response.Error)
	}
	for _, g := range response.Groups {
		for id, d := range g.InstanceStats {
			s := Statistics{
				Vendor: g.Vendor, Type: g.Type, Name: g.Name, ID: id, Summary: valueOf(d.Summary), Values: map[string]Value{},
			}
			for name, v := range d.Stats.Attributes {
				s.Values[name] = valueOf(v)
			}
			r.Statistics = append(r.Statistics, s)
		}
	}
	slices.SortFunc(r.Statistics, func(a, b Statistics) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

func (r *Recording) captureReservations(plugin ndevice.DevicePlugin) error {
	for _, g := range r.Groups {
		var all []string
		for _, d := range g.Devices {
			all = append(all, d.ID)
		}
		requests := [][]string{all}
		for i := range all {
			if len(all) > 1 {
				requests = append(requests, []string{all[i]})
			}
		}
		for _, ids := range requests {
			reservation, err := plugin.Reserve(ids)
			if err != nil {
				return fmt.Errorf("reserve %v: %w", ids, err)
			}
			if len(reservation.Mounts)+len(reservation.Devices) > 0 {
				return fmt.Errorf("reserve %v: the plugin returned mounts or devices, which a recording cannot have", ids)
			}
			env := make(map[string]string)
			for name, value := range reservation.Envs {
				if claim.IsTokenVariable(name) { // recorded without the claim's ID and the secret
					name, value = claim.EnvPrefix, ""
				}
				env[name] = value
			}
			r.Reservations = append(r.Reservations, Reservation{IDs: ids, Env: env})
		}
	}
	return nil
}

func first[T any](ctx context.Context, stream <-chan T) (T, error) {
	var none T
	select {
	case message, ok := <-stream:
		if !ok {
			return none, errors.New("it ended without an answer")
		}
		return message, nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
