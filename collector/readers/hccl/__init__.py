"""What HCCL measured of its operations: communication.json and communication_matrix.json."""
