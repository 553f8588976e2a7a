# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Hops do
  @moduledoc """
  Two connected nodes, and what they are asked to do: named functions, since a node knows no anonymous ones of a test.
  """

  alias ExternalService.Deadline

  @service :hop

  @doc "Starts two nodes that are connected; they end with the test."
  def start_nodes do
    [near, far] = for _ <- 1..2, do: start_node()
    {_, far_name} = far
    {near_pid, _} = near
    true = :peer.call(near_pid, :net_kernel, :connect_node, [far_name])
    {near, far}
  end

  defp start_node do
    options = %{
      name: :peer.random_name(),
      host: ~c"127.0.0.1",
      longnames: true,
      connection: :standard_io,
      args: Enum.flat_map(:code.get_path(), &[~c"-pa", &1])
    }

    {:ok, pid, name} = :peer.start_link(options)
    {:ok, _} = :peer.call(pid, :application, :ensure_all_started, [:elixir])
    {pid, name}
  end

  @doc "Runs a function of this module on a node."
  def on({pid, _name}, function, arguments), do: :peer.call(pid, __MODULE__, function, arguments, 60_000)

  def start(options), do: ExternalService.start(@service, options)

  @doc "What is left on `far` of a deadline of `ms` that is set here."
  def left_there(ms, far),
    do: Deadline.with_deadline(ms, fn -> :erpc.call(far, Deadline.attach(&Deadline.remaining/0)) end)

  @doc "A call here that calls there: how that ended, and what was left."
  def call_there(options, far) do
    ExternalService.call(@service, options, fn -> :erpc.call(far, Deadline.attach(&__MODULE__.call_here/0)) end)
  end

  def call_here, do: ExternalService.call(@service, fn -> {:left, Deadline.remaining()} end)

  @doc "The same when nothing is left."
  def skip_there(far) do
    Deadline.with_deadline(0, fn -> :erpc.call(far, Deadline.attach(&__MODULE__.call_here/0)) end)
  end

  @doc "A call here, retried where its error says that this may help, of one there that always fails."
  def fail_there(far) do
    worth_it? = &(match?({:error, %_{}}, &1) and worth_it?(&1))
    ExternalService.call(@service, [retry_on: worth_it?], fn -> :erpc.call(far, __MODULE__, :fail_here, []) end)
  end

  defp worth_it?({:error, %module{} = error}), do: module.retryable?(error)

  def fail_here, do: ExternalService.call(@service, fn -> :counters.add(counter(), 1, 1) && :retry end)

  @doc "How often `fail_here/0` ran its function on this node."
  def failures, do: :counters.get(counter(), 1)

  defp counter do
    with nil <- :persistent_term.get(__MODULE__, nil) do
      counter = :counters.new(1, [])
      :persistent_term.put(__MODULE__, counter)
      counter
    end
  end
end
