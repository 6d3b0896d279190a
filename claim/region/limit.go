package region

// SetLimit changes the limit of the region in dir. Programs that run under it see the old one or the new one, never
// half of either; what they hold beyond a lower limit stays theirs, and they get no more.
func SetLimit(dir string, limitBytes uint64) error {
	return setWord(dir, offLimitLimitBytes, limitBytes)
}

// SetSpill changes how much the programs of the region in dir may allocate beyond the limit, as managed memory that
// lives on the host; 0 is nothing.
func SetSpill(dir string, spillBytes uint64) error {
	return setWord(dir, offLimitSpillBytes, spillBytes)
}

// SetUncounted takes what the claim's processes hold beyond what they count from the limit of the region in dir. Programs
// see it as used.
func SetUncounted(dir string, uncountedBytes uint64) error {
	return setWord(dir, offLimitUncounted, uncountedBytes)
}

func setWord(dir string, off int64, v uint64) error {
	if _, err := ReadHeader(dir); err != nil {
		return err
	}
	f, err := open(dir, LimitFile, true)
	if err != nil {
		return err
	}
	defer f.Close()
	return withMapping(f, LimitSize, true, func(m mapping) { m.store64(off, v) })
}
