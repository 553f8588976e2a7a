defmodule ExternalService.Concurrency do
  @moduledoc """
  Keeps the number of calls in flight below a limit.

      iex> ExternalService.start(:printing, concurrency: [limit: 4, wait: 2_000, queue: 20])
      iex> ExternalService.call(:printing, fn -> ExternalService.Concurrency.in_flight(:printing) end)
      1
      iex> {ExternalService.Concurrency.in_flight(:printing), ExternalService.Concurrency.limit(:printing)}
      {0, 4}

  Four calls run at once. Up to twenty more wait, at most two seconds each, and get their slots in the order in which
  they came; any further call is refused at once with `ExternalService.ServiceSaturated`. A refusal is no failure: it is not
  retried and does not melt the breaker.

  A slot is free again as soon as its holder is done, however it ends: by returning, raising, throwing, exiting, or because
  its process is killed. A waiter whose process dies leaves the queue.

  ## Options

  #{ExternalService.Options.docs(:concurrency)}

  A wait for a slot on a virtual clock passes at once: other processes get a turn, then the clock moves to its end.
  """

  alias ExternalService.{Native, Service, ServiceSaturated, Telemetry, Unit, VirtualClock}

  @enforce_keys [:service, :slots, :limit, :wait, :queue, :reclaim_after, :clock]
  defstruct @enforce_keys

  # The longest timeout of a receive.
  @timeout_max 0xFFFF_FFFF

  @type service :: ExternalService.service()
  @type wait :: non_neg_integer() | false
  @type saturated :: {:error, ExternalService.ServiceSaturated.t()}

  @type t :: %__MODULE__{
          service: service(),
          slots: Native.bulkhead(),
          limit: pos_integer(),
          wait: wait(),
          queue: non_neg_integer() | :infinity,
          reclaim_after: pos_integer() | nil,
          clock: VirtualClock.t() | nil
        }

  @doc "Returns how many calls hold a slot now; 0 for a service without a limit, or that is not started."
  @spec in_flight(service()) :: non_neg_integer()
  def in_flight(service), do: service |> counts() |> elem(1)

  @doc "Returns how many calls wait for a slot now; 0 for a service without a limit, or that is not started."
  @spec queued(service()) :: non_neg_integer()
  def queued(service), do: service |> counts() |> elem(2)

  @doc "Returns the limit; `nil` for a service without one, or that is not started."
  @spec limit(service()) :: pos_integer() | nil
  def limit(service), do: service |> counts() |> elem(0)

  @doc """
  Frees every slot, whoever holds it, or returns `{:error, :not_found}` if the service is not started.

  Calls that are in flight go on, and are no longer counted.
  """
  @spec reset(service()) :: :ok | {:error, :not_found}
  def reset(service) do
    case Service.get(service) do
      nil -> {:error, :not_found}
      %Service{concurrency: nil} -> :ok
      %Service{concurrency: concurrency} -> clear(concurrency)
    end
  end

  # A slot whose lease is over counts as in use until somebody takes it, but it refuses nobody.
  @doc false
  @spec saturated?(service()) :: boolean()
  def saturated?(service) do
    case Service.get(service) do
      %Service{concurrency: %__MODULE__{slots: slots, clock: clock}} ->
        {limit, in_flight, queued, lease_end} = Native.bulkhead_counts(slots)
        (in_flight >= limit or queued > 0) and lease_end > now(clock)

      _unlimited ->
        false
    end
  end

  @doc false
  @spec idle?(t()) :: boolean()
  def idle?(%__MODULE__{slots: slots}) do
    {_limit, in_flight, queued, _lease_end} = Native.bulkhead_counts(slots)
    in_flight == 0 and queued == 0
  end

  # The slots that `fun` runs in are for counting: there is always one.
  @doc false
  @spec counted(t(), (() -> result)) :: result when result: term()
  def counted(concurrency, fun) do
    {:ok, holder} = enter(concurrency)

    try do
      fun.()
    after
      leave(concurrency, holder)
    end
  end

  defp counts(service) do
    case Service.get(service) do
      %Service{concurrency: %__MODULE__{slots: slots}} -> Native.bulkhead_counts(slots)
      _unlimited -> {nil, 0, 0, :infinity}
    end
  end

  # Makes room for whoever waits, too.
  defp clear(%__MODULE__{slots: slots} = concurrency) do
    concurrency |> granted(Native.bulkhead_reset(slots))
    :ok
  end

  # Makes the limit that the options of a service describe.
  @doc false
  @spec new(service(), keyword() | nil, VirtualClock.t() | nil, Native.endpoint() | nil) :: t() | nil
  def new(service, options, clock, endpoint \\ nil)
  def new(_service, nil, _clock, _endpoint), do: nil

  def new(service, options, clock, endpoint) do
    config = {options[:limit], options[:queue], Unit.ns(options[:reclaim_after])}

    %__MODULE__{
      service: service,
      slots: Native.bulkhead_new(config, VirtualClock.handle(clock), endpoint),
      limit: options[:limit],
      wait: options[:wait],
      queue: options[:queue],
      reclaim_after: options[:reclaim_after],
      clock: clock
    }
  end

  # The same with other options, for those who hold and wait now as for those who come. Another `:reclaim_after` is
  # another kind of slot: then who holds or waits stays with the old ones.
  @doc false
  @spec reconfigure(t() | nil, service(), keyword() | nil, VirtualClock.t() | nil, Native.endpoint() | nil) :: t() | nil
  def reconfigure(old, service, options, clock, endpoint \\ nil)

  def reconfigure(%__MODULE__{clock: clock} = old, service, options, clock, endpoint) when options != nil do
    if old.reclaim_after == options[:reclaim_after] do
      new = %{old | limit: options[:limit], wait: options[:wait], queue: options[:queue]}
      granted(new, Native.bulkhead_set(new.slots, new.limit, new.queue))
      new
    else
      new(service, options, clock, endpoint)
    end
  end

  def reconfigure(_old, service, options, clock, endpoint), do: new(service, options, clock, endpoint)

  # The pipeline's way in and out. It waits no longer than the nanoseconds that are `left` of the call's deadline.
  @doc false
  @spec enter(t(), non_neg_integer() | :infinity) :: {:ok, Native.holder()} | saturated()
  def enter(concurrency, left \\ :infinity)

  def enter(%__MODULE__{wait: wait} = concurrency, left) when is_integer(left) and is_integer(wait),
    do: enter(%{concurrency | wait: min(wait, Unit.whole_ms(left))}, :infinity)

  def enter(%__MODULE__{slots: slots, wait: wait} = concurrency, _left) do
    holder = holder()

    slots |> Native.bulkhead_acquire(holder, may_wait(wait)) |> entered(concurrency, holder)
  end

  defp entered(:ok, _concurrency, holder), do: {:ok, holder}
  defp entered({:queued, token, lease_end}, concurrency, holder), do: queue(concurrency, holder, token, lease_end)
  defp entered(:full, concurrency, _holder), do: refuse(concurrency, 0)

  defp entered({:reclaimed, ended, slot}, %__MODULE__{service: service, limit: limit} = concurrency, holder) do
    Telemetry.concurrency_reclaimed(service, limit, ended)
    entered(slot, concurrency, holder)
  end

  @doc false
  @spec leave(t(), Native.holder()) :: :ok
  def leave(%__MODULE__{slots: slots}, holder), do: Native.bulkhead_release(slots, holder)

  # One for each process, kept where it dies with it.
  defp holder do
    with nil <- Process.get(__MODULE__) do
      holder = Native.holder_new()
      Process.put(__MODULE__, holder)
      holder
    end
  end

  defp may_wait(wait) when wait in [false, 0], do: :now
  defp may_wait(_ms), do: :wait

  defp queue(%__MODULE__{wait: wait, clock: clock} = concurrency, holder, token, lease_end) do
    began = Native.clock_now(VirtualClock.handle(clock))
    turn = await(concurrency, token, began + Unit.ns(wait), lease_end)
    waited = Unit.ms(Native.clock_now(VirtualClock.handle(clock)) - began)

    case {turn, Native.bulkhead_leave(holder)} do
      {:come, :granted} ->
        if waited > 0, do: Telemetry.concurrency_waited(concurrency.service, concurrency.limit, waited)
        {:ok, holder}

      # The turn came in the instant in which the wait ended: it is the next one's.
      {:over, :granted} ->
        receive do: ({:external_service_slot, ^token} -> leave(concurrency, holder))
        refuse(concurrency, waited)

      {:over, :left} ->
        refuse(concurrency, waited)
    end
  end

  # Waits for the turn until `until`. A lease that ends earlier makes room for somebody, and it is who waits that sees
  # to it.
  defp await(%__MODULE__{slots: slots, clock: clock} = concurrency, token, until, lease_end) do
    ms = Unit.ms(max(min(until, lease_end) - now(clock), 0))

    cond do
      come?(token, pause(clock, ms)) -> :come
      over?(clock, ms, until) -> :over
      true -> await(concurrency, token, until, granted(concurrency, Native.bulkhead_grant(slots)))
    end
  end

  defp come?(token, timeout) do
    receive do
      {:external_service_slot, ^token} -> true
    after
      timeout -> false
    end
  end

  # The machine's clock passes while the process waits for its turn, for as long as the VM's timers can count. A virtual
  # one gives way to other processes, and moves on when that brought no turn.
  defp pause(nil, ms), do: min(ms, @timeout_max)

  defp pause(_clock, _ms) do
    :erlang.yield()
    0
  end

  defp over?(nil, _ms, until), do: now(nil) >= until

  defp over?(clock, ms, until) do
    VirtualClock.wait(clock, ms)
    now(clock) >= until
  end

  defp now(clock), do: clock |> VirtualClock.handle() |> Native.clock_now()

  # Tells of leases that were ended to let waiters in, lets in the rest, and returns when the next lease ends.
  defp granted(%__MODULE__{service: service, slots: slots, limit: limit} = concurrency, {ended, lease_end, more}) do
    if ended > 0, do: Telemetry.concurrency_reclaimed(service, limit, ended)
    if more == :more, do: granted(concurrency, Native.bulkhead_grant(slots)), else: lease_end
  end

  defp refuse(%__MODULE__{service: service, slots: slots}, waited) do
    {limit, in_flight, queued, _lease_end} = Native.bulkhead_counts(slots)
    Telemetry.concurrency_rejected(service, limit, waited)
    {:error, %ServiceSaturated{context: %{service: service, limit: limit, in_flight: in_flight, queued: queued}}}
  end
end
