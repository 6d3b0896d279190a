package main

import (
	"bytes"
	"testing"

	"github.com/shoenig/test/must"
)

// entry is one of a fat binary, with 40 bytes of header and 8 of code.
func entry(kind uint16, architecture uint32, code string) []byte {
	e := make([]byte, 40, 48)
	le.PutUint16(e, kind)
	le.PutUint32(e[4:], 40)
	le.PutUint64(e[8:], uint64(len(code)))
	le.PutUint32(e[28:], architecture)
	return append(e, code...)
}

func fatBinary(entries ...[]byte) []byte {
	all := bytes.Join(entries, nil)
	return append(le.AppendUint64(bytes.Clone(magic), uint64(len(all))), all...)
}

func TestPruneAll(t *testing.T) {
	const machineCode = 2
	wanted := entry(kindPTX, 80, "wanted..")
	between := []byte("between")
	before := bytes.Join([][]byte{
		between, fatBinary(entry(kindPTX, 75, "too old."), wanted, entry(machineCode, 80, "machine.")),
		between, fatBinary(wanted, entry(kindPTX, 90, "too new.")), between,
	}, nil)
	gone := func(count int) []byte { return make([]byte, count*len(wanted)) }
	after := bytes.Join([][]byte{
		between, fatBinary(wanted), gone(2), between, fatBinary(wanted), gone(1), between,
	}, nil)
	must.NoError(t, pruneAll(before, 80))
	must.Eq(t, after, before)
}

func TestPruneAll_refuses(t *testing.T) {
	must.ErrorContains(t, pruneAll([]byte("nothing"), 80), "no fat binary")
	must.ErrorContains(t, pruneAll(fatBinary(entry(kindPTX, 75, "old")), 80), "no PTX for architecture 80")
	must.ErrorContains(t, pruneAll(fatBinary(entry(kindPTX, 80, "code"))[:50], 80), "cut off")
	broken := fatBinary(entry(kindPTX, 80, "code"))
	le.PutUint64(broken[headerBytes+8:], 1<<63)
	must.ErrorContains(t, pruneAll(broken, 80), "does not fit")
}
