/* A shadow library without a shadow: everything falls through to the driver, and no limit holds. */
