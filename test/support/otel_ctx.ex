# SPDX-License-Identifier: Apache-2.0

defmodule :otel_ctx do
  @moduledoc false
  # Stands in for OpenTelemetry's module of this name: the context of a process.

  def get_current, do: Process.get(__MODULE__, %{})

  def attach(context) do
    Process.put(__MODULE__, context)
    make_ref()
  end
end
