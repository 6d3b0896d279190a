package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// mix is a kind of jobs: how many slices each of them asks for, at random.
type mix struct {
	name string
	next func(r *rand.Rand) int
}

// mixes are what GPUs are filled with: jobs of all sizes up to half a GPU, and small jobs with one among ten that needs a
// whole GPU.
var mixes = []mix{
	{"up-to-half", func(r *rand.Rand) int { return 1 + r.IntN(deviceSlices/2) }},
	{"some-whole", func(r *rand.Rand) int {
		if r.IntN(10) == 0 {
			return deviceSlices
		}
		return 1 + r.IntN(40)
	}},
}

// jobs are the sizes of one round's jobs, in the order in which they come: more than there is room for. A round is the same
// whenever it is asked for.
func (m mix) jobs(seed, round uint64) []int {
	r := chance(seed, round)
	var sizes []int
	for sum(sizes) <= deviceGPUs*deviceSlices {
		sizes = append(sizes, m.next(r))
	}
	return sizes
}

// chance is the same for the same numbers.
func chance(seed, of uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, of)) //nolint:gosec // nobody is to be kept from guessing it
}

// The ways in which a round's jobs get their places.
const (
	// noAffinity is without an affinity: Nomad takes one of the GPUs that have room at random.
	noAffinity = "no-affinity"
	// firstFit is with the affinities of examples/packed.nomad.hcl: the GPU with the lowest index on which the job fits.
	firstFit = "first-fit"
	// withHint is with affinities on the packing hint, each job coming when Nomad has been told of those before: the fullest.
	withHint = "hint"
	// bestPossible is what no scheduler can do better, all jobs known and each moved whenever that helps.
	bestPossible = "best"
)

var packingWays = []string{noAffinity, firstFit, withHint, bestPossible}

// packingCounts says how often packing is measured.
type packingCounts struct {
	// rounds is how many rounds of each mix there are on real nodes, all at the same time; modelled how many in a model.
	rounds, modelled int
	seed             uint64
}

// fills are how full the GPUs got in rounds, as parts of all slices in percent, by the way and in the order of the rounds.
type fills map[string][]float64

// add notes that so many slices had been given to jobs when the first one had to wait.
func (f fills) add(way string, slices int) {
	f[way] = append(f[way], 100*float64(slices)/(deviceGPUs*deviceSlices))
}

func (f fills) results(benchmark string) []result {
	var results []result
	for _, way := range packingWays {
		if len(f[way]) == 0 {
			continue
		}
		r := result{benchmark: benchmark, variant: way, threads: 1, unit: "%"}
		r.median, r.p99 = medianOf(f[way])
		results = append(results, r)
	}
	return results
}

// packing measures how full eight GPUs are when the first job has to wait.
func (b *bench) packing(ctx context.Context, counts packingCounts) (_ []result, err error) {
	if counts.rounds < 1 || counts.modelled < 1 {
		return nil, fmt.Errorf("-packing-rounds %d and -packing-modelled %d have to be 1 or more", counts.rounds, counts.modelled)
	}
	dir, remove, err := b.packingDir()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	fmt.Printf("==> packing: %d nodes of %d GPUs, each filled three times; with the hint's pauses that takes a quarter of an hour\n",
		len(mixes)*counts.rounds, deviceGPUs)
	nodes, err := b.startPackingNodes(ctx, dir, len(mixes)*counts.rounds)
	defer func() {
		for _, n := range nodes {
			err = errors.Join(err, n.Stop(context.WithoutCancel(ctx)))
		}
	}()
	if err != nil {
		return nil, err
	}
	var results []result
	measured, err := fillNodes(ctx, nodes, counts)
	if err != nil {
		return nil, err
	}
	for i, m := range mixes {
		results = append(results, measured[i].results("packing-"+m.name)...)
		modelled, err := model(m, counts.modelled, counts.seed)
		if err != nil {
			return nil, err
		}
		results = append(results, modelled.results("packing-model-"+m.name)...)
	}
	return results, nil
}

// packingDir makes the nodes' directory, in the sandbox.
func (b *bench) packingDir() (dir string, remove func() error, err error) {
	if os.Getenv("TRANCHE_SANDBOX") != "1" {
		return "", nil, errors.New("packing is measured in a sandbox only: run build/e2e/sandbox --dir DIR -- build/e2e/bench …")
	}
	if err := node.HideUnifiedCgroup(); err != nil {
		return "", nil, err
	}
	return b.shortDir("packing")
}

// startPackingNodes starts nodes one after another. Those that run are returned with an error, too.
func (b *bench) startPackingNodes(ctx context.Context, dir string, count int) ([]*packingNode, error) {
	var nodes []*packingNode
	for i := range count {
		n, err := b.startPackingNode(ctx, filepath.Join(dir, fmt.Sprint("n", i)))
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// fillNodes fills each node with one round's jobs, in all ways, one after another. Rounds without pauses take turns, since
// they want the processor; those with pauses go on at the same time. It returns what the rounds of each mix gave.
func fillNodes(ctx context.Context, nodes []*packingNode, counts packingCounts) ([]fills, error) {
	measured := make([]fills, len(mixes))
	for i := range measured {
		measured[i] = fills{}
	}
	placed := make([]int, len(nodes))
	for _, way := range packingWays[:3] {
		group, ctx := errgroup.WithContext(ctx)
		if way != withHint {
			group.SetLimit(1)
		}
		for i, n := range nodes {
			sizes := mixes[i%len(mixes)].jobs(counts.seed, uint64(i/len(mixes)))
			group.Go(func() (err error) {
				placed[i], err = n.round(ctx, way, sizes)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, fmt.Errorf("packing %s: %w", way, err)
		}
		for i := range nodes {
			measured[i%len(mixes)].add(way, placed[i])
		}
	}
	for i := range nodes {
		if err := measured[i%len(mixes)].addBest(mixes[i%len(mixes)].jobs(counts.seed, uint64(i/len(mixes)))); err != nil {
			return nil, err
		}
	}
	return measured, nil
}

func (f fills) addBest(sizes []int) error {
	jobs, exact := mostJobs(sizes, deviceGPUs, deviceSlices, packingSteps)
	if !exact {
		return fmt.Errorf("the search for the best way to pack %v was given up; take another -packing-seed", sizes)
	}
	f.add(bestPossible, sum(sizes[:jobs]))
	return nil
}
