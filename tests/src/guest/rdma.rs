//! RDMA tools between two guests.
