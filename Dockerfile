# Ringside with Horovod, Open MPI 4 and sshd, for Kubernetes' operators and for apptainer.
#
#   docker build -t ringside .
#   docker build -t ringside:cuda --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 --build-arg RUNTIME=ubuntu:24.04 \
#     --build-arg OPERATIONS=nccl .
#
# Both stages need the same Python. torch's wheels bring CUDA's libraries, so the second stage needs no toolkit.
ARG BASE=debian:bookworm-slim
ARG RUNTIME=debian:bookworm-slim

FROM ${BASE} AS build
ARG OPERATIONS=cpu
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates g++ make python3-dev python3-venv
COPY . /opt/ringside
WORKDIR /opt/ringside
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --constraint install/constraints.txt uv
RUN /opt/venv/bin/uv pip install --python /opt/venv/bin/python --constraint install/constraints.txt --build-constraint install/constraints.txt '.[mpi,build,tune]'
RUN /opt/venv/bin/python -m install.build_horovod --operations ${OPERATIONS}

FROM ${RUNTIME}
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates openssh-client openssh-server python3 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
# The user, port and files that MPI Operator and Kubeflow Trainer expect; they mount the keys into .ssh.
RUN { userdel --remove ubuntu 2>/dev/null || true; } && useradd --create-home --uid 1000 --shell /bin/bash mpiuser && mkdir -p /run/sshd /results && chown mpiuser /results
RUN printf 'Host *\n    Port 2222\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    LogLevel ERROR\n' > /etc/ssh/ssh_config
RUN printf 'Port 2222\nPidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nPasswordAuthentication no\nSetEnv PATH=%s\n' "$PATH" > /home/mpiuser/.sshd_config && chown mpiuser /home/mpiuser/.sshd_config
USER mpiuser
WORKDIR /home/mpiuser
