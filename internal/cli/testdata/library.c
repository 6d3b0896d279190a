/* A stand-in for a library of the driver, or for the shadow before it: says which of the two it is. */
const char *tranche_test_which(void);
__attribute__((visibility("default"))) const char *tranche_test_which(void) {
    return WHICH;
}
